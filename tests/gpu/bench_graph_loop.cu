// Times work that a graph repeats: copies of it one after another, against a loop in the graph
// whose condition a kernel writes each time. Not a test; run it by hand. A line of JSON a case.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kLaunches = 33, kWarmUps = 3;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "bench_gpu_graph_loop: error: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

/// Reads n numbers, so that a launch takes as long as a small product.
__global__ void read(const float4* from, int64_t n, float* sum) {
  float s = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    s += from[i].x + from[i].y + from[i].z + from[i].w;
  if (s == 1.5f) *sum = s;  // never, and the compiler does not know
}

__global__ void start(int* done) { *done = 0; }

/// What verification would do: it counts a round, and says whether sequences still need one.
__global__ void count(int* done) { ++*done; }
__global__ void count_and_decide(int* done, int rounds, cudaGraphConditionalHandle loop) {
  cudaGraphSetConditional(loop, ++*done < rounds ? 1 : 0);
}

struct Case {
  int kernels;    // of a round
  int64_t bytes;  // that each reads
  int rounds;
};

struct Work {
  float4* data;
  float* sum;
  int* done;
  int blocks;

  void round(const Case& c, cudaStream_t stream) const {
    for (int i = 0; i < c.kernels; ++i)
      read<<<blocks, 256, 0, stream>>>(data, c.bytes / static_cast<int64_t>(sizeof(float4)), sum);
  }
};

cudaGraphExec_t unrolled(const Case& c, const Work& work, cudaStream_t stream) {
  cudaGraph_t graph;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  start<<<1, 1, 0, stream>>>(work.done);
  for (int i = 0; i < c.rounds; ++i) {
    work.round(c, stream);
    count<<<1, 1, 0, stream>>>(work.done);
  }
  check(cudaStreamEndCapture(stream, &graph), "capture");
  cudaGraphExec_t exec;
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  check(cudaGraphDestroy(graph), "graph");
  return exec;
}

cudaGraphExec_t looped(const Case& c, const Work& work, cudaStream_t stream) {
  cudaGraph_t graph;
  check(cudaGraphCreate(&graph, 0), "graph");
  cudaGraphConditionalHandle handle;
  check(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault), "handle");
  check(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
                                      cudaStreamCaptureModeThreadLocal),
        "capture");
  start<<<1, 1, 0, stream>>>(work.done);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  size_t n = 1;
  cudaGraphNode_t first, loop;
  check(cudaGraphGetNodes(graph, &first, &n), "nodes");
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = cudaGraphCondTypeWhile;
  params.conditional.size = 1;
  check(cudaGraphAddNode(&loop, graph, &first, nullptr, 1, &params), "loop");
  cudaGraph_t body = params.conditional.phGraph_out[0];
  check(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0,
                                      cudaStreamCaptureModeThreadLocal),
        "capture");
  work.round(c, stream);
  count_and_decide<<<1, 1, 0, stream>>>(work.done, c.rounds, handle);
  check(cudaStreamEndCapture(stream, &body), "capture");
  cudaGraphExec_t exec;
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  check(cudaGraphDestroy(graph), "graph");
  return exec;
}

/// Median microseconds of a launch.
double time_of(cudaGraphExec_t exec, const Case& c, const Work& work, cudaStream_t stream) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> ms;
  for (int i = 0; i < kLaunches; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(exec, stream), "launch");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "wait");
    float one = 0;
    check(cudaEventElapsedTime(&one, begin, end), "time");
    if (i >= kWarmUps) ms.push_back(one);
    int done = 0;
    check(cudaMemcpy(&done, work.done, sizeof done, cudaMemcpyDeviceToHost), "copy");
    if (done != c.rounds) {
      std::fprintf(stderr, "bench_gpu_graph_loop: error: %d rounds done of %d\n", done, c.rounds);
      std::exit(1);
    }
  }
  check(cudaGraphExecDestroy(exec), "graph");
  std::nth_element(ms.begin(), ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2), ms.end());
  return 1e3 * static_cast<double>(ms[ms.size() / 2]);
}

}  // namespace

int main() {
  cudaDeviceProp gpu;
  check(cudaGetDeviceProperties(&gpu, 0), "device");
  Work work{.blocks = 2 * gpu.multiProcessorCount};
  constexpr int64_t kMost = int64_t{64} << 20;
  check(cudaMalloc(reinterpret_cast<void**>(&work.data), kMost), "memory");
  check(cudaMemset(work.data, 0, kMost), "memory");
  check(cudaMalloc(reinterpret_cast<void**>(&work.sum), sizeof(float)), "memory");
  check(cudaMalloc(reinterpret_cast<void**>(&work.done), sizeof(int)), "memory");
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  // A round within of a 7B shape over chosen keys has some 270 kernels, of a 12-layer model 100.
  for (const Case c : {Case{270, int64_t{48} << 20, 5}, Case{270, int64_t{48} << 20, 16},
                       Case{100, int64_t{1} << 20, 5}, Case{100, int64_t{1} << 20, 16}}) {
    const double flat = time_of(unrolled(c, work, stream), c, work, stream),
                 loop = time_of(looped(c, work, stream), c, work, stream);
    std::printf(
        "{\"gpu\": \"%s\", \"kernels\": %d, \"bytes\": %lld, \"rounds\": %d, \"unrolled_us\": "
        "%.1f, "
        "\"loop_us\": %.1f, \"loop_costs_us_a_round\": %.2f}\n",
        gpu.name, c.kernels, static_cast<long long>(c.bytes), c.rounds, flat, loop,
        (loop - flat) / c.rounds);
    std::fflush(stdout);
  }
  return 0;
}
