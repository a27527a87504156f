// SPDX-License-Identifier: Apache-2.0
// The one notion of a device: memory, queues of work, copies between devices, recorded work.
//
// Everything above this folder is made *on* a device (Tensor, Workspace, Cache, Ops, layers) and enqueues its work on
// the queue that Context names. Code above ops and moe does not ask which kind of device it is: it asks for what a
// device does (DeviceId's properties). Programs choose a device, and name it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace sluice {

struct DeviceId {
  enum class Kind : uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  // of the CUDA device; 0 for the CPU

  constexpr bool is_host() const { return kind == Kind::cpu; }
  // The host reads and writes its memory in place.
  constexpr bool shares_host_memory() const { return is_host(); }
  // Its queues run work while the caller goes on.
  constexpr bool asynchronous() const { return !is_host(); }
  // An allocation takes its bytes when it is made. Elsewhere pages are taken when they are touched, and the system
  // makes room for them.
  constexpr bool reserves_memory() const { return !is_host(); }
  bool operator==(const DeviceId&) const = default;
};
std::string to_string(DeviceId id);  // "cpu", "cuda:1"

class Device;

struct DeviceMemory {
  int64_t total = 0;  // bytes; of the host, what this process may use
  int64_t free = 0;   // now
};

// A point in a queue's work. Made by Queue::record().
class Event {
 public:
  virtual ~Event() = default;
  virtual void wait() = 0;  // until the queue has come past it; throws what went wrong before
};

// Work recorded by Queue::capture(), to be enqueued again with one call.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch() = 0;  // on the queue that recorded it
};

// Work in order. What one thread enqueues runs one after another; the caller goes on at once where the device is not
// the host.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual Device& device() const = 0;
  // The CUDA stream (a cudaStream_t), for launches of kernels; null for the CPU.
  virtual void* stream() const = 0;

  // `to` and `from` are memory of this queue's device or of the host. Host memory must stay as it is until the queue
  // has come past the copy.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  virtual void zero(void* memory, int64_t bytes) = 0;

  virtual void wait() = 0;  // until all work enqueued so far is done; throws what went wrong in it
  virtual std::unique_ptr<Event> record() = 0;
  virtual void wait_for(const Event& event) = 0;  // of another queue; later work of this one starts after it

  // Records the work that `enqueue` enqueues here, without running it. Null, without calling `enqueue`, where
  // recording gains nothing (the CPU). Memory must not be allocated while work is recorded.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& enqueue) = 0;
};

// Made by the program, passed down, and outlives everything that was made on it.
class Device {
 public:
  static constexpr int64_t kAlignment = 256;  // of every allocation, in bytes

  virtual ~Device() = default;
  virtual DeviceId id() const = 0;
  virtual DeviceMemory memory() = 0;
  // Not initialised; freed with the last reference. Throws out_of_memory naming the size and the device.
  virtual std::shared_ptr<void> allocate(int64_t bytes) = 0;
  // Host memory that the device reads and writes in place; copies from it neither block nor take another buffer.
  virtual std::shared_ptr<void> allocate_staging(int64_t bytes) = 0;
  virtual std::unique_ptr<Queue> make_queue() = 0;
};

// The CPU. Neither object has state: its queue runs work at once, on the caller's thread.
Device& host_device();
Queue& host_queue();

}  // namespace sluice
