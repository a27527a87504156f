// SPDX-License-Identifier: Apache-2.0
// A captured graph, and a stream that does not block on the default one.
#pragma once

#include "tests/kernels_sm90/device_problem.h"

namespace sluice::test {

struct Graph {
  cudaGraphExec_t exec = nullptr;
  template <class Body>
  Graph(cudaStream_t stream, Body&& body) {
    cudaGraph_t graph;
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    body();
    cuda(cudaStreamEndCapture(stream, &graph), "end of capture");
    cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
  }
  ~Graph() { cudaGraphExecDestroy(exec); }
  void replay(cudaStream_t stream) const {
    cuda(cudaGraphLaunch(exec, stream), "replay");
    cuda(cudaStreamSynchronize(stream), "replay");
  }
};

struct OwnStream {
  cudaStream_t get = nullptr;
  OwnStream() { cuda(cudaStreamCreateWithFlags(&get, cudaStreamNonBlocking)); }
  ~OwnStream() { cudaStreamDestroy(get); }
};

}  // namespace sluice::test
