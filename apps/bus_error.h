// SPDX-License-Identifier: Apache-2.0
// A checkpoint is mapped, so a file that is cut short under it is a SIGBUS. The library looks at the size before it
// hands out a view; this is for what happens after that look.
#pragma once

namespace sluice::apps {

// From now on a SIGBUS in a mapped file ends the process with one sentence that names the file, and kExitFile. Any
// other SIGBUS keeps its default.
void explain_bus_errors();

}  // namespace sluice::apps
