// SPDX-License-Identifier: Apache-2.0
// kv_events/publisher.h over libzmq.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <optional>
#include <thread>

#include "base/error.h"
#include "server/kv_events/batch_queue.h"
#include "server/kv_events/encode.h"
#include "server/kv_events/publisher.h"
#include "server/kv_events/zmq.h"

namespace sluice::server {

namespace {
constexpr uint64_t kEndOfReplay = UINT64_MAX;
constexpr size_t kReplayBytes = size_t{256} << 20;  // of the batches that can be asked for again
constexpr int64_t kMostIncoming = 4096;             // bytes of one part of what subscribers send: topics, numbers
constexpr int kLingerMs = 100;                      // for what is unsent at the end

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string big_endian(uint64_t value) {
  std::string out(8, '\0');
  for (auto byte = out.rbegin(); byte != out.rend(); ++byte, value >>= 8) *byte = static_cast<char>(value & 0xff);
  return out;
}

uint64_t from_big_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

// A file descriptor that wakes a poll.
class Wake {
 public:
  Wake() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) fail(ErrorCode::io, "no file descriptor is left for KV events");
  }
  ~Wake() { ::close(fd_); }
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;
  int fd() const { return fd_; }
  void set() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof(one));
  }
  void reset() {
    uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(fd_, &count, sizeof(count));
  }

 private:
  int fd_;
};

// The port that the system chose, in the words of the configuration.
std::string bound_endpoint(const std::string& wanted, const std::string& bound) {
  const size_t colon = wanted.rfind(':'), port = bound.rfind(':');
  if (!wanted.starts_with("tcp://") || port == bound.npos) return wanted;
  return wanted.substr(0, colon) + bound.substr(port);
}
}  // namespace

struct KvEventPublisher::Impl {
  struct Published {
    uint64_t sequence;
    zmq::Part batch;
  };

  Impl(const KvEventsConfig& c, std::function<void(std::string_view)> l)
      : config(c), log(std::move(l)), context(library), live(library, context, ZMQ_PUB), queue(c.max_queue_size) {
    prepare(live, config.endpoint);
    live.set(ZMQ_SNDHWM, config.hwm);
    if (is_listened_at(config.endpoint)) {
      live.bind(config.endpoint);
      endpoint = bound_endpoint(config.endpoint, live.last_endpoint());
    } else {
      live.connect(config.endpoint);
      endpoint = config.endpoint;
    }
    if (!config.replay_endpoint.empty()) {
      replay.emplace(library, context, ZMQ_ROUTER);
      prepare(*replay, config.replay_endpoint);
      // A whole replay at once, and no second one for a client that does not read the first.
      replay->set(ZMQ_SNDHWM, static_cast<int>(config.buffer_steps) + 1);
      replay->bind(config.replay_endpoint);
      replay_endpoint = bound_endpoint(config.replay_endpoint, replay->last_endpoint());
    }
    push({{.kind = engine::CacheEvent::Kind::cleared}});  // who has known an earlier server here begins anew
    thread = std::thread([this] { run(); });
  }
  ~Impl() {
    stopping = true;
    wake.set();
    thread.join();
  }

  static void prepare(zmq::Socket& socket, const std::string& endpoint) {
    socket.set(ZMQ_LINGER, kLingerMs);
    socket.set(ZMQ_TCP_KEEPALIVE, 1);
    if (endpoint.find("::") != endpoint.npos) socket.set(ZMQ_IPV6, 1);
    socket.set(ZMQ_MAXMSGSIZE, kMostIncoming);
  }

  void push(std::vector<engine::CacheEvent> events) {
    if (queue.push(now(), std::move(events))) wake.set();
  }

  void run();
  bool serve();  // waits for something to do, and does it; false: it was the last
  void publish();
  void answer(const std::vector<zmq::Part>& request);
  zmq::Part part(std::string_view bytes) const { return {library, bytes}; }

  const KvEventsConfig config;
  std::function<void(std::string_view)> log;
  zmq::Library library;
  zmq::Context context;
  zmq::Socket live;  // the thread's own, once it runs, as is `replay`
  std::optional<zmq::Socket> replay;
  std::string endpoint, replay_endpoint;
  Wake wake;
  BatchQueue queue;
  std::deque<Published> published;
  size_t published_bytes = 0;
  uint64_t dropped = 0;
  std::atomic<bool> stopping = false;
  std::thread thread;
};

void KvEventPublisher::Impl::run() {
  for (bool more = true; more;) {
    try {
      more = serve();
    } catch (const std::exception& error) {  // memory: what was taken from the queue is lost
      log(fmt::format("KV events: batches were lost: {}", error.what()));
      push({{.kind = engine::CacheEvent::Kind::cleared}});
    }
  }
}

bool KvEventPublisher::Impl::serve() {
  // The first is never readable; in the poll it takes up new subscribers while nothing is published.
  std::array<zmq_pollitem_t, 3> items{{{live.get(), 0, ZMQ_POLLIN, 0},
                                       {nullptr, wake.fd(), ZMQ_POLLIN, 0},
                                       {replay ? replay->get() : nullptr, 0, ZMQ_POLLIN, 0}}};
  if (library.poll(items.data(), replay ? 3 : 2, -1) < 0) {
    if (library.error() == EINTR) return true;
    log(fmt::format("KV events end: {}", library.error_text()));
    return false;
  }
  const bool last = stopping;
  // Asked first and answered last, so that who asks gets all that had happened before.
  const std::vector<zmq::Part> request = replay ? replay->receive() : std::vector<zmq::Part>();
  wake.reset();
  publish();
  if (!request.empty()) answer(request);
  return !last;
}

void KvEventPublisher::Impl::publish() {
  for (const EventBatch& batch : queue.take()) {
    const zmq::Part payload = part(encode_batch(batch.time, batch.events, config.format));
    live.send({part(config.topic), part(big_endian(batch.sequence)), payload});
    if (!replay) continue;
    published.push_back({batch.sequence, payload});
    published_bytes += payload.size();
    while (published.size() > config.buffer_steps || published_bytes > kReplayBytes) {
      published_bytes -= published.front().batch.size();
      published.pop_front();
    }
  }
  if (const uint64_t all = queue.dropped(); all > dropped) {
    log(fmt::format("KV events: {} batches were dropped, as they came faster than they could be sent", all - dropped));
    dropped = all;
  }
}

// [client, "", first sequence number] gets [client, "", topic, number, batch] for each that is still there, and a last
// one with the number 2^64 - 1 and no batch. What is no such request is not answered.
void KvEventPublisher::Impl::answer(const std::vector<zmq::Part>& request) {
  if (request.size() != 3 || request[1].size() != 0 || request[2].size() != 8) return;
  const uint64_t first = from_big_endian(request[2].bytes());
  const auto send = [&](uint64_t sequence, const zmq::Part& batch, std::string_view topic) {
    std::vector<zmq::Part> parts{request[0], part("")};
    if (config.format == KvEventsConfig::Format::map) parts.push_back(part(topic));  // came with the maps
    parts.push_back(part(big_endian(sequence)));
    parts.push_back(batch);
    return replay->send(parts);
  };
  for (const Published& p : published)
    if (p.sequence >= first && !send(p.sequence, p.batch, config.topic)) return;
  send(kEndOfReplay, part(""), "");
}

KvEventPublisher::KvEventPublisher(const KvEventsConfig& config, std::function<void(std::string_view)> log)
    : impl_(std::make_unique<Impl>(config, std::move(log))) {}
KvEventPublisher::~KvEventPublisher() = default;
void KvEventPublisher::push(std::vector<engine::CacheEvent> events) { impl_->push(std::move(events)); }
std::string KvEventPublisher::endpoint() const { return impl_->endpoint; }
std::string KvEventPublisher::replay_endpoint() const { return impl_->replay_endpoint; }

}  // namespace sluice::server
