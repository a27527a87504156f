// SPDX-License-Identifier: Apache-2.0
// kv_events/publisher.h in a build without KV events.
#include "base/error.h"
#include "server/kv_events/publisher.h"

namespace sluice::server {

struct KvEventPublisher::Impl {};

KvEventPublisher::KvEventPublisher(const KvEventsConfig&, std::function<void(std::string_view)>) {
  fail(ErrorCode::unsupported,
       "KV events: this program was built without them; install libzmq3-dev and build again "
       "(SLUICE_KV_EVENTS=ON)");
}
KvEventPublisher::~KvEventPublisher() = default;
void KvEventPublisher::push(std::vector<engine::CacheEvent>) {}
std::string KvEventPublisher::endpoint() const { return ""; }
std::string KvEventPublisher::replay_endpoint() const { return ""; }

}  // namespace sluice::server
