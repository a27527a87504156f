// SPDX-License-Identifier: Apache-2.0
#include "device/cuda.h"

#include "base/error.h"

#if defined(SLUICE_WITH_CUDA)
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>
#endif

namespace sluice {

std::string no_device_reason(int driver, int runtime, std::string_view says) {
  if (driver == 0) return "there is no CUDA device: no NVIDIA driver is installed";
  if (driver < runtime)
    return fmt::format("the NVIDIA driver is too old: it supports CUDA {}.{}, and this build needs {}.{}",
                       driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  return fmt::format("there is no CUDA device: {}", says);
}

#if defined(SLUICE_WITH_CUDA)

namespace {
constexpr int kMajor = 9, kMinor = 0;  // the compute capability that the kernels are compiled for

void check_cuda(cudaError_t status, const char* what, DeviceId id) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorStreamCaptureUnsupported)
    fail(ErrorCode::internal, "{} was called on {} while work is recorded", what, to_string(id));
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::cuda;
  fail(code, "{} failed on {}: {} ({})", what, to_string(id), cudaGetErrorString(status), cudaGetErrorName(status));
}

// Makes a GPU current for its scope, and the one before it afterwards.
class Current {
 public:
  explicit Current(DeviceId id) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice", id);
    changed_ = before_ != id.index;
    if (changed_) check_cuda(cudaSetDevice(id.index), "cudaSetDevice", id);
  }
  ~Current() {
    if (changed_) cudaSetDevice(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

class CudaEvent : public Event {
 public:
  CudaEvent(DeviceId id, cudaStream_t stream) : id_(id) {
    const Current current(id_);
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate", id_);
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord", id_);
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  void wait() override { check_cuda(cudaEventSynchronize(event_), "work enqueued earlier", id_); }
  cudaEvent_t get() const { return event_; }

 private:
  DeviceId id_;
  cudaEvent_t event_ = nullptr;
};

class CudaGraph : public Graph {
 public:
  CudaGraph(DeviceId id, cudaGraph_t graph, cudaStream_t stream) : id_(id), stream_(stream) {
    check_cuda(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate", id_);
    // Without it the first launch uploads, which takes as long as several launches.
    const cudaError_t uploaded = cudaGraphUpload(exec_, stream_);
    if (uploaded != cudaSuccess) cudaGraphExecDestroy(exec_);
    check_cuda(uploaded, "cudaGraphUpload", id_);
  }
  ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
  void launch() override {
    const Current current(id_);
    check_cuda(cudaGraphLaunch(exec_, stream_), "cudaGraphLaunch", id_);
  }

 private:
  DeviceId id_;
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : id_{DeviceId::Kind::cuda, index} {}
  DeviceId id() const override { return id_; }
  DeviceMemory memory() override {
    const Current current(id_);
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", id_);
    return {static_cast<int64_t>(total), static_cast<int64_t>(free)};
  }
  std::shared_ptr<void> allocate(int64_t bytes) override;
  std::shared_ptr<void> allocate_staging(int64_t bytes) override;
  std::unique_ptr<Queue> make_queue() override;

 private:
  const DeviceId id_;
};

class CudaQueue : public Queue {
 public:
  CudaQueue(Device& device, cudaStream_t stream) : device_(device), id_(device.id()), stream_(stream) {}
  explicit CudaQueue(CudaDevice& device) : device_(device), id_(device.id()), owned_(true) {
    const Current current(id_);
    // Not blocking: the default stream, which other libraries of the process may use, orders nothing here.
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate", id_);
  }
  ~CudaQueue() override {
    if (!owned_) return;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  Device& device() const override { return device_; }
  void* stream() const override { return stream_; }

  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes <= 0) return;
    const Current current(id_);
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "a copy", id_);
  }
  void zero(void* memory, int64_t bytes) override {
    if (bytes <= 0) return;
    const Current current(id_);
    check_cuda(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_), "clearing memory", id_);
  }

  void wait() override {
    const Current current(id_);  // of whose streams the default one is
    check_cuda(cudaStreamSynchronize(stream_), "work enqueued earlier", id_);
  }
  std::unique_ptr<Event> record() override { return std::make_unique<CudaEvent>(id_, stream_); }
  void wait_for(const Event& event) override {
    const Current current(id_);
    const auto* point = dynamic_cast<const CudaEvent*>(&event);
    if (point != nullptr) check_cuda(cudaStreamWaitEvent(stream_, point->get(), 0), "cudaStreamWaitEvent", id_);
  }

  std::unique_ptr<Graph> capture(const std::function<void()>& enqueue) override;
  std::vector<OperationTime> time_operations(const std::function<void()>& enqueue, int repeat);

 private:
  using RecordedGraph = std::unique_ptr<CUgraph_st, void (*)(cudaGraph_t)>;
  RecordedGraph record(const std::function<void()>& enqueue);

  Device& device_;
  const DeviceId id_;
  cudaStream_t stream_ = nullptr;
  bool owned_ = false;
};

std::shared_ptr<void> CudaDevice::allocate(int64_t bytes) {
  const Current current(id_);
  void* p = nullptr;
  const cudaError_t status = cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    const DeviceMemory now = memory();
    fail(ErrorCode::out_of_memory, "could not allocate {} bytes on {}, which has {} of {} bytes free", bytes,
         to_string(id_), now.free, now.total);
  }
  check_cuda(status, "cudaMalloc", id_);
  // cudaFree waits for the work in flight, so what still reads the block is done before another gets it.
  return {p, [](void* block) { cudaFree(block); }};
}

std::shared_ptr<void> CudaDevice::allocate_staging(int64_t bytes) {
  const Current current(id_);
  void* p = nullptr;
  // Mapped at the same address, as all page-locked memory is where addresses are unified (every 64-bit system).
  const cudaError_t status = cudaMallocHost(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail(ErrorCode::out_of_memory, "could not allocate {} bytes of page-locked host memory for {}", bytes,
         to_string(id_));
  }
  check_cuda(status, "cudaMallocHost", id_);
  return {p, [](void* block) { cudaFreeHost(block); }};
}

std::unique_ptr<Queue> CudaDevice::make_queue() { return std::make_unique<CudaQueue>(*this); }

CudaQueue::RecordedGraph CudaQueue::record(const std::function<void()>& enqueue) {
  // Of this thread only: other threads go on allocating and waiting while this one records.
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture", id_);
  cudaGraph_t recorded = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream_, &recorded);
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    cudaGetLastError();
    throw;
  }
  // What fails here leaves the queue as it was: the caller may launch the work instead.
  const cudaError_t ended = cudaStreamEndCapture(stream_, &recorded);
  if (ended != cudaSuccess) cudaGetLastError();
  check_cuda(ended, "cudaStreamEndCapture", id_);
  return {recorded, [](cudaGraph_t g) { cudaGraphDestroy(g); }};
}

std::unique_ptr<Graph> CudaQueue::capture(const std::function<void()>& enqueue) {
  const Current current(id_);
  const RecordedGraph graph = record(enqueue);
  try {
    return std::make_unique<CudaGraph>(id_, graph.get(), stream_);
  } catch (...) {
    cudaGetLastError();
    throw;
  }
}

// "grouped_gemm_kernel<GemmTile<...>>": without namespaces, return type and parameters.
std::string kernel_name(cudaGraphNode_t node) {
  cudaKernelNodeParams params{};
  const char* mangled = nullptr;
  if (cudaGraphKernelNodeGetParams(node, &params) != cudaSuccess ||
      cudaFuncGetName(&mangled, params.func) != cudaSuccess || mangled == nullptr) {
    cudaGetLastError();
    return "kernel";
  }
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  std::string name = status == 0 && text ? text.get() : mangled;
  for (const std::string_view part : {"(anonymous namespace)::", "sluice::sm90::", "sluice::"})
    for (size_t at; (at = name.find(part)) != std::string::npos;) name.erase(at, part.size());
  if (name.starts_with("void ")) name.erase(0, 5);
  // The parameters are the last brackets that no template argument encloses.
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

std::string operation_name(cudaGraphNode_t node) {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  cudaGraphNodeGetType(node, &type);
  return type == cudaGraphNodeTypeKernel   ? kernel_name(node)
         : type == cudaGraphNodeTypeMemcpy ? "copy"
         : type == cudaGraphNodeTypeMemset ? "fill"
                                           : "other";
}

// The nodes in an order in which each follows those that it depends on. Takes all dependencies away.
std::vector<cudaGraphNode_t> unchained(cudaGraph_t graph, DeviceId id) {
  size_t count = 0, edges = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes", id);
  std::vector<cudaGraphNode_t> nodes(count), order;
  check_cuda(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes", id);
  check_cuda(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges), "cudaGraphGetEdges", id);
  std::vector<cudaGraphNode_t> from(edges), to(edges);
  std::vector<cudaGraphEdgeData> data(edges);
  if (edges > 0)
    check_cuda(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &edges), "cudaGraphGetEdges", id);
  std::map<cudaGraphNode_t, int> waits_for;
  std::multimap<cudaGraphNode_t, cudaGraphNode_t> followers;
  for (size_t i = 0; i < edges; ++i) {
    ++waits_for[to[i]];
    followers.emplace(from[i], to[i]);
  }
  for (cudaGraphNode_t node : nodes)
    if (waits_for[node] == 0) order.push_back(node);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto [begin, end] = followers.equal_range(order[i]);
    for (auto it = begin; it != end; ++it)
      if (--waits_for[it->second] == 0) order.push_back(it->second);
  }
  if (edges > 0)
    check_cuda(cudaGraphRemoveDependencies(graph, from.data(), to.data(), data.data(), edges),
               "cudaGraphRemoveDependencies", id);
  return order;
}

// A chain of the recorded operations with an event after each: events in a graph cost the host nothing.
std::vector<OperationTime> CudaQueue::time_operations(const std::function<void()>& enqueue, int repeat) {
  const Current current(id_);
  const RecordedGraph graph = record(enqueue);
  const std::vector<cudaGraphNode_t> nodes = unchained(graph.get(), id_);
  std::vector<std::shared_ptr<CUevent_st>> events;
  cudaGraphNode_t last = nullptr;
  const auto stamp = [&] {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreate(&event), "cudaEventCreate", id_);
    events.emplace_back(event, [](cudaEvent_t e) { cudaEventDestroy(e); });
    cudaGraphNode_t node = nullptr;
    check_cuda(cudaGraphAddEventRecordNode(&node, graph.get(), &last, last == nullptr ? 0 : 1, event),
               "cudaGraphAddEventRecordNode", id_);
    last = node;
  };
  stamp();
  std::vector<OperationTime> out;
  for (cudaGraphNode_t node : nodes) {
    check_cuda(cudaGraphAddDependencies(graph.get(), &last, &node, nullptr, 1), "cudaGraphAddDependencies", id_);
    last = node;
    stamp();
    out.push_back({operation_name(node), 0});
  }
  CudaGraph runnable(id_, graph.get(), stream_);
  std::vector<std::vector<float>> times(nodes.size());
  for (int r = 0; r <= repeat; ++r) {
    runnable.launch();
    wait();
    for (size_t i = 0; i < nodes.size() && r > 0; ++i) {  // the first run warms up
      float ms = 0;
      check_cuda(cudaEventElapsedTime(&ms, events[i].get(), events[i + 1].get()), "cudaEventElapsedTime", id_);
      times[i].push_back(ms);
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    if (!times[i].empty()) out[i].microseconds = 1e3 * static_cast<double>(times[i][times[i].size() / 2]);
  }
  return out;
}
}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

Support cuda_device_supported(int index) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    cudaGetLastError();
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return Support::no(no_device_reason(driver, runtime, cudaGetErrorString(status)));
  }
  if (index < 0 || index >= count)
    return Support::no(fmt::format("there is no device cuda:{}; {} CUDA device{} present", index, count,
                                   count == 1 ? " is" : "s are"));
  const DeviceId id{DeviceId::Kind::cuda, index};
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "cudaDeviceGetAttribute", id);
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "cudaDeviceGetAttribute", id);
  if (major != kMajor || minor != kMinor)
    return Support::no(
        fmt::format("{} has compute capability {}.{}; the kernels of this build run on {}.{} (H100, H200)",
                    to_string(id), major, minor, kMajor, kMinor));
  return Support::yes();
}

std::unique_ptr<Device> make_cuda_device(int index) {
  if (const Support usable = cuda_device_supported(index); !usable) fail(ErrorCode::unsupported, "{}", usable.reason);
  const DeviceId id{DeviceId::Kind::cuda, index};
  const Current current(id);
  check_cuda(cudaFree(nullptr), "making the CUDA context", id);
  return std::make_unique<CudaDevice>(index);
}

std::unique_ptr<Queue> make_cuda_queue(Device& device, void* stream) {
  return std::make_unique<CudaQueue>(device, static_cast<cudaStream_t>(stream));
}

std::vector<OperationTime> time_operations(Queue& queue, const std::function<void()>& enqueue, int repeat) {
  auto* of_gpu = dynamic_cast<CudaQueue*>(&queue);
  return of_gpu != nullptr ? of_gpu->time_operations(enqueue, repeat) : std::vector<OperationTime>();
}

std::optional<DeviceId> device_of(const void* pointer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged:
      return DeviceId{DeviceId::Kind::cuda, attributes.device};
    case cudaMemoryTypeHost:
      return DeviceId{};
    default:
      return std::nullopt;
  }
}

#else

int cuda_device_count() { return 0; }

Support cuda_device_supported(int) { return Support::no("this build has no CUDA"); }

std::unique_ptr<Device> make_cuda_device(int index) {
  fail(ErrorCode::unsupported, "cuda:{} cannot be used: {}; accepted: cpu", index, cuda_device_supported(index).reason);
}

std::unique_ptr<Queue> make_cuda_queue(Device&, void*) {
  fail(ErrorCode::unsupported, "there is no CUDA stream: this build has no CUDA");
}

std::vector<OperationTime> time_operations(Queue&, const std::function<void()>&, int) { return {}; }

std::optional<DeviceId> device_of(const void*) { return std::nullopt; }

#endif

}  // namespace sluice
