// SPDX-License-Identifier: Apache-2.0
#include "base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

namespace sluice {

namespace {
constexpr double kNone = std::numeric_limits<double>::infinity();

double cores_of(double quota, double period) { return quota > 0 && period > 0 ? quota / period : kNone; }

// "max 100000" or "150000 100000".
double quota_v2(const std::filesystem::path& folder) {
  std::ifstream file(folder / "cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period ? cores_of(quota, period) : kNone;
}

// -1: no limit.
double quota_v1(const std::filesystem::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us"), period_file(folder / "cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period ? cores_of(quota, period) : kNone;
}

// Of a group and those above it.
template <class Quota>
double least(const std::filesystem::path& mount, std::filesystem::path group, Quota quota) {
  group = group.lexically_normal().relative_path();
  double out = quota(mount);
  for (; !group.empty(); group = group.parent_path()) out = std::min(out, quota(mount / group));
  return out;
}

bool has_controller(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}
}  // namespace

double cpu_quota(const std::filesystem::path& membership, const std::filesystem::path& mount) {
  double out = kNone;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {  // hierarchy:controllers:group
    const size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) out = std::min(out, least(mount, group, quota_v2));
    if (has_controller(controllers, "cpu"))
      for (const std::string& folder : {controllers, std::string("cpu")})
        out = std::min(out, least(mount / folder, group, quota_v1));
  }
  return out;
}

int usable_cores() {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const double quota = std::ceil(cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup"));
  return quota < cores ? std::max(1, static_cast<int>(quota)) : cores;
}

}  // namespace sluice
