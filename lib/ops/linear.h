#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/weight_format.h"
#include "kernels/ffn/gate.h"
#include "kernels/linear/code_tiles.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace tandem::ops {

class Staging;

/// A dense layer's weights where its products run, and its bias. On the CPU they are packed, one
/// layout for every row count: in panels for our own product in f32, to which bf16 weights are
/// widened as they are read, or where the CPU multiplies bf16 in panels of pairs of inputs, which
/// our own product of few rows and oneDNN's of many both read. On a GPU they stay row-major.
class PackedWeights {
 public:
  struct Spec {
    std::string name;  // buffer name in the memory plan, "weights/..."
    int64_t out = 0;   // N
    int64_t in = 0;    // K
    bool bias = false;
    WeightFormat stored = DType::bf16;
    DType input = widens_to(stored);  // f32 or bf16
    Device device = {};
    /// On the CPU the rows are kept as well as the packed ones: input gradients read them, and they
    /// can be rewritten (linear_gradient.h). Codes are kept only as rows. Products decode some of
    /// them at a time, and a result then depends on the number of rows of x. Only a part that
    /// is held in numbers can be rewritten (hold_part). On a GPU codes are kept as others are, and
    /// the workspace of products is larger, also for input gradients.
    bool trainable = false;
    /// The matrix can be read by input too, [in, out], one input's weights after the other
    /// (input_rows): on the CPU as a second copy, on a GPU as the only copy,
    /// on which `linear` then runs. Codes are by input on a GPU only (code_tiles.h), where
    /// input_rows is null. Not with trainable on a GPU.
    bool by_input = false;
    /// Of weights by input on a GPU: rows of a source have source_in numbers, of which the matrix
    /// has `in` from first_in on. 0: in.
    int64_t source_in = 0, first_in = 0;
    /// i4 and i8 codes are multiplied by inputs rounded to integers of 8 bits, of which 32 share a
    /// scale. If false, they are widened to f32 and multiplied by the inputs as they are, as fp8
    /// codes always are.
    bool int8_inputs = false;
    /// A GPU rounds inputs to fp8 in products of more than 256 rows with fp8 codes.
    bool fp8_inputs = false;
    /// Rows of several formats, one stack after the other; empty: all are as `stored` says. Not by
    /// input.
    struct Stacked {
      int64_t rows;
      WeightFormat stored;
    };
    std::vector<Stacked> stacked = {};
    /// The outputs are gates and what they gate, half each: a GPU keeps codes of both together.
    bool gated = false;

    int64_t row_numbers() const { return source_in > 0 ? source_in : in; }
    WeightFormat format_at(int64_t row) const;
    /// `stacked`, or all rows as `stored` says.
    std::vector<Stacked> stacks() const;
    /// True if some rows are codes.
    bool has_codes() const;
  };
  /// Writes rows [begin, end) of the [out, in] matrix, all of one format, as the spec stores them,
  /// to `staging`; of source_in numbers where it says so.
  using RowSource = std::function<void(int64_t begin, int64_t end, void* staging)>;
  /// The same by work on the stream, to the GPU's memory; false: it cannot, and has done nothing.
  using DeviceRowSource = std::function<bool(int64_t begin, int64_t end, void* device, Stream)>;

  /// Rows of numbers that a GPU quantizes (ops/quantizing.h) to the codes of the spec.
  struct Unquantized {
    RowSource rows;  // numbers as `type` says; empty: there are none
    DeviceRowSource device_rows;
    DType type;  // bf16 or f32
    bool search;
    /// Called by Staging::wait if a number is NaN or infinite; throws an error that names it.
    std::function<void()> refuse;
  };

  PackedWeights() = default;
  PackedWeights(PackedWeights&&) noexcept = default;
  PackedWeights& operator=(PackedWeights&&) noexcept = default;

  static void plan(const Spec& spec, MemoryPlan& plan);
  /// Bytes of host memory that a Staging for these weights needs.
  static size_t staging_bytes(const Spec& spec);
  /// Takes the planned memory and fills it some rows at a time; `bias` [out] f32, or empty. On a
  /// GPU the weights have arrived after staging.wait(); where `device_rows` can, it writes them and
  /// `rows` is not called. Nor is it called where the GPU quantizes `numbers`, which gives the same
  /// bytes.
  void load(const Spec& spec, Arena& arena, const RowSource& rows, std::span<const float> bias,
            Staging& staging, const DeviceRowSource& device_rows = {},
            const Unquantized& numbers = {});

  /// The same on a GPU, into memory that another owns: device_bytes(spec), aligned to 256. The
  /// bytes there are all that the weights are: copied to other such memory, they are the same
  /// weights.
  void load(const Spec& spec, void* memory, const RowSource& rows, std::span<const float> bias,
            Staging& staging, const DeviceRowSource& device_rows = {},
            const Unquantized& numbers = {});
  /// Bytes of a GPU's memory for the matrix and the bias, a multiple of 256.
  static size_t device_bytes(const Spec& spec);
  /// Such weights as lie, or will lie, that many bytes further on.
  PackedWeights moved(ptrdiff_t bytes) const;

  bool empty() const { return state_ == nullptr; }
  /// On a GPU the rows as they were given, [out, in]; null on the CPU, of codes, and where they are
  /// by input.
  void* device_rows() const;
  /// On a GPU codes of one format; null of others.
  const CodeTiles* device_codes() const;
  /// [in, out] of weights by input, on their device; null of others.
  const void* input_rows() const;
  /// The bias [out] on the weights' device, or null.
  float* bias() const;
  int64_t out() const;
  int64_t in() const;
  /// Type of weights that are plain numbers.
  DType dtype() const;
  /// Type of the inputs of products.
  DType input() const;
  Device device() const;
  /// Bytes read when a forward touches one row, or the whole matrix, once.
  size_t row_bytes() const;
  size_t bytes() const;
  /// Scratch that `linear` needs for at most `max_rows` rows, on the weights' device.
  static size_t workspace_bytes(const Spec& spec, int64_t max_rows);

  struct State;
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

/// Host memory through which rows pass on their way into weights. For a GPU it is a ring of pinned
/// buffers: rows are written to one while others are being copied, also across the borders of
/// matrices.
class Staging {
 public:
  /// `memory` must outlive this.
  /// errors   kind device
  Staging(Device device, void* memory, size_t bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void* memory() const { return memory_; }
  /// All weights loaded so far have arrived.
  /// errors   kind device; as Unquantized::refuse
  void wait();

  struct Ring;
  /// Null on the CPU.
  Ring* ring() const { return ring_.get(); }

 private:
  void* memory_;
  std::shared_ptr<Ring> ring_;
};

/// True where products on that device take weights so stored, which are codes, and inputs of that
/// type.
bool multiplies_codes(const WeightFormat& stored, DType input, Device device);

enum class Accumulate : bool { no, yes };

/// y = x W^T + b, or y += x W^T + b.
/// shapes   x [rows, in] of the weights' input type; y [rows, out] bf16 or f32, f32 if accumulating
/// numerics f32 accumulation. On the CPU, but for bf16 weights where it multiplies bf16, each row's
///          result is bit-identical whatever the other rows, their number and the threads. On a GPU
///          f32 products are true f32, a row's result depends on the number of rows but on no other
///          row, and with y bf16 the bias may be rounded to bf16 first
/// cost     reads the packed weights from memory once per 1 MiB numbers of x, 96 rows at least (on
///          a CPU that multiplies bf16 once for up to 32 rows, then once per tile of 32 rows or
///          more); on a GPU up to 16 rows exactly once
/// errors   none (shapes are checked by TANDEM_CHECK); `workspace` per workspace_bytes
/// stream   the GPU's; {} on the CPU. The product may start to read the weights before the work
///          ahead of it on the stream has ended: that work must not write them
void linear(const Tensor& y, const Tensor& x, const PackedWeights& w, Accumulate accumulate,
            std::span<std::byte> workspace, Stream stream);

/// y = the activation of g, times u, where x W^T + b = [g | u]: the first and the second half of
/// the outputs.
/// shapes   x as in linear; gate_up [rows, out] and y [rows, out / 2] of one dtype; gate_up is
///          scratch
/// numerics as linear and gate_mul after it, but that a kernel of a GPU which does both at once
///          rounds nothing between
void linear_gated(const Tensor& y, const Tensor& gate_up, const Tensor& x, const PackedWeights& w,
                  Gate gate, std::span<std::byte> workspace, Stream stream);

/// Operations that a product of few rows on a GPU can fuse without another pass over memory.
struct LinearFusion {
  const float* norm_weight = nullptr;  // [in]: x is f32, and its rms_norm is multiplied
  float norm_eps = 0;
  std::optional<Gate> gate = {};  // y [rows, out / 2]: as linear_gated
};

/// Whether linear_fused has a kernel for products of `rows` rows with these weights.
bool can_fuse(const PackedWeights& w, int64_t rows, const LinearFusion& fusion);
/// Whether that is also the faster way, by what tune_linear or tune_gated has measured.
bool fusion_pays(const PackedWeights& w, int64_t rows, const LinearFusion& fusion);

/// linear with a fusion; only where can_fuse. Nothing is rounded between the fused operations but
/// the normalised input, to bf16. Runs as was chosen for the product without the norm, if that was
/// this kernel.
/// shapes   as linear, but for what the fusion says; gated products do not accumulate
/// stream   as linear; nor may the work ahead write norm_weight
void linear_fused(const Tensor& y, const Tensor& x, const LinearFusion& fusion,
                  const PackedWeights& w, Accumulate accumulate, Stream stream);

/// What stands before and after a product in a forward, put on the stream: some products start to
/// read their weights while the kernel before them runs, others let the one after them start, so
/// that the fastest alone need not be the fastest there. `i` counts the weights of one shape.
struct LinearNeighbours {
  std::function<void(size_t i, Stream)> before = {}, after = {};
};

/// Chooses on a GPU how products of x.rows() rows with weights like these run: as kept in the cache
/// folder (io::cache_file), else by measuring on these operands, and keeps the choice, so
/// that later runs do the same and give the same bits. Up to 16 rows a choice is for that very
/// number, beyond for all up to the next power of two. Without it `linear` takes what is best as a
/// rule. Not while a graph is recorded; y is overwritten. Does nothing on the CPU.
/// alike    weights of one shape, format and device, in turn: together larger than the GPU's cache,
///          so that none is found there
/// around   measured with the product, as far as they are given
/// cost     where nothing is kept, some milliseconds up to half a second
void tune_linear(const Tensor& y, const Tensor& x, std::span<const PackedWeights* const> alike,
                 Accumulate accumulate, const LinearNeighbours& around,
                 std::span<std::byte> workspace, Stream stream);
/// tune_linear for linear_gated.
void tune_gated(const Tensor& y, const Tensor& gate_up, const Tensor& x,
                std::span<const PackedWeights* const> alike, Gate gate,
                const LinearNeighbours& around, std::span<std::byte> workspace, Stream stream);

/// Forgets the choices held in memory; the kept ones are read again when next needed.
void forget_linear_choices();

/// Brings a library's code and threads into memory, where a plan made afterwards counts them with
/// the program: on the CPU by one small product, on a GPU by its driver and a question to cuBLASLt,
/// which takes no memory there. Only the first call for a dtype and a number of threads, or a GPU,
/// does, and returns true.
/// errors   kind device, memory as cuda::device_info
bool warm_up_linear(DType dtype, Device device = {});

/// Bytes of host memory that products hold in addition to buffers: the code that oneDNN generates
/// for each shape of weights and each number of rows, of which a bounded number is kept. 0 on a
/// GPU, and where our own kernels multiply.
/// dtype       of weights and inputs
/// shapes      of weights, one that is added to its output counted apart
/// row_counts  different numbers of rows that each is multiplied with
size_t product_code_bytes(DType dtype, Device device, size_t shapes, int row_counts);

/// Bytes of oneDNN's own code that its first products bring into a process's memory.
size_t product_library_bytes(DType dtype, Device device);

}  // namespace tandem::ops
