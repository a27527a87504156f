// SPDX-License-Identifier: Apache-2.0
// How many threads of this process can run at once.
#pragma once

#include <filesystem>

namespace sluice {

// The cores of the process's affinity, or fewer where its control group's quota is less (docker run --cpus=2 on 64
// cores): more threads would use the quota up while they wait for each other, and all be stopped for the rest of the
// period. At least 1.
int usable_cores();

// The quota in cores of the control groups that `membership` (/proc/self/cgroup) names, or of one above them, under
// `mount` (/sys/fs/cgroup), of version 1 or 2; infinity where there is none. A container's own group may be mounted at
// the root while its membership has the host's path, so folders that are not there are passed over.
// https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max), scheduler/sched-bwc.html (cpu.cfs_quota_us)
double cpu_quota(const std::filesystem::path& membership, const std::filesystem::path& mount);

}  // namespace sluice
