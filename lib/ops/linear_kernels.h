#pragma once
// The kernels that a dense layer on a GPU may run on: cuBLASLt's and ours.
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/linear/held_part.h"
#include "ops/linear_choices.h"
#include "ops/linear_device.h"
#include "tensor/cuda.h"

namespace tandem::ops {

struct CudaLinear {
  // Rows, output dtype, accumulate, gate.
  using Key = std::tuple<int64_t, DType, bool, std::optional<Gate>>;

  PackedWeights::Spec spec;
  std::byte* weights = nullptr;          // [out, in]
  float* bias = nullptr;                 // [out], or null
  bf16* rounded_bias = nullptr;          // [out], or null
  std::vector<linear_cuda::Part> parts;  // empty for one format of numbers
  HeldPart held = {};                    // next to codes; no values: none
  std::mutex mutex;  // of the memo: products of different weights never wait for each other
  std::map<Key, LinearChoice> memo;
  uint64_t memo_of = 0;  // the generation of choices that `memo` is from
};

namespace linear_cuda {

/// Rows up to which skinny_linear is the best as a rule, on an H200 with the layers of an 8B model.
inline constexpr int64_t kSkinnyUpTo = 4;
/// Numbers of x beyond which a block, each of which normalises all of it, takes longer than a
/// kernel of its own for that: 4 rows of an 8B model, on an H200.
inline constexpr int64_t kNormedUpTo = 4 * 4096;

/// All that decides which choice is the fastest, beside the GPU.
std::string kernel_versions();

/// skinny_linear with the two numbers of loads in flight that can be the fastest: the most that
/// fit. With `norm` x is normalised first.
std::vector<LinearChoice> skinny_candidates(const LinearProduct& p, bool norm = false);
/// All that may be the fastest.
std::vector<LinearChoice> candidates(const LinearProduct& p, int device);
/// What is best as a rule; costs no work on the GPU.
/// errors   kind device where nothing can run it
LinearChoice default_choice(const LinearProduct& p, int device);
/// Whether a choice, perhaps from a file, can run the product.
bool usable(const LinearChoice& c, const LinearProduct& p, int device);

/// Products with weights of which some are codes.
namespace coded {

bool can_fuse(const CudaLinear& w, int64_t rows, bool norm, bool gated);
void run_fused(const Operands& at, const LinearFusion& fusion, const CudaLinear& w, bool accumulate,
               Stream stream);
void run(const Operands& at, const CudaLinear& w, bool accumulate, std::optional<Gate> gate,
         Stream stream);
/// Widens the outputs that rows of tiles [first, first + n) of a part hold, by CodeTiles::place, to
/// a panel [outputs, inputs]. Held numbers are among them.
void fill_panel(bf16* panel, const CudaLinear& w, const Part& part, int first, int n, int64_t begin,
                int64_t inputs, Stream stream);

}  // namespace coded

void run_choice(const LinearChoice& c, const LinearProduct& p, const Operands& at,
                const CudaLinear& w, Stream stream);
/// With p.gate that is fused; with fusion.norm_weight x is f32, and normalised first.
void run_skinny(int stages, const LinearProduct& p, const Operands& at, const CudaLinear& w,
                const LinearFusion& fusion, Stream stream);
/// Microseconds of one product and its neighbours among many, each with the next of the weights.
double measure(const LinearChoice& c, const LinearProduct& p, const Operands& at,
               std::span<CudaLinear* const> alike, const LinearNeighbours& around,
               cuda::Queue& queue);
/// The same of run(i), which puts a product of about that size on the queue.
double measure(size_t weight_bytes, double flops, const std::function<void(size_t i)>& run,
               cuda::Queue& queue);

/// The choice that was measured on a GPU and kept, of any product, by words that name it.
std::optional<LinearChoice> kept_choice(const std::string& words, int device);
void keep_choice(const std::string& words, const LinearChoice& c, int device);
/// Changes whenever choices do.
uint64_t choices_generation();

}  // namespace linear_cuda

}  // namespace tandem::ops
