// Dense layers on a GPU: cuBLASLt and, for few rows, our own kernel, whichever was measured faster.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "base/check.h"
#include "io/cache_dir.h"
#include "kernels/cuda_table.h"
#include "kernels/linear/skinny_linear_cuda.h"
#include "ops/cublaslt.h"
#include "ops/linear_choices.h"
#include "ops/linear_device.h"
#include "tensor/cuda.h"

namespace tandem::ops {
namespace {

// What cuBLASLt's own guide gives Hopper GPUs.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// Of a staging buffer: far beyond what a copy costs to start (some 10 us, 0.5 MiB at PCIe speed).
constexpr size_t kSlotBytes = size_t{32} << 20;
// One is filled while another is copied; the third takes up what varies.
constexpr size_t kSlots = 3;
constexpr size_t kAlignment = 256;
constexpr int kLibraryCandidates = 12;
// Choices kept beside weights; ragged prefills ask for many row counts.
constexpr size_t kMaxMemo = 256;
// To be raised when skinny_linear changes so that other layouts may be the fastest.
constexpr int kSkinnyRevision = 1;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Where the parts of a layer's device memory begin.
struct Places {
  size_t bias, rounded_bias, end;

  explicit Places(const PackedWeights::Spec& s) {
    const auto out = static_cast<size_t>(s.out);
    bias = aligned(out * static_cast<size_t>(s.in) * dtype_bytes(s.dtype));
    rounded_bias = bias + (s.bias ? aligned(out * sizeof(float)) : 0);
    end = rounded_bias + (s.bias ? aligned(out * sizeof(bf16)) : 0);
  }
};

}  // namespace

struct Staging::Ring {
  struct Slot {
    std::byte* data;
    cuda::Event copied;
    bool used = false;
    explicit Slot(std::byte* p) : data(p) {}
  };

  cuda::PinnedRange pinned;
  cuda::Queue queue;
  size_t slot_bytes;
  std::deque<Slot> slots;
  size_t next = 0;

  Ring(int device, std::byte* memory, size_t bytes)
      : pinned(memory, bytes), queue(device), slot_bytes(bytes / kSlots) {
    for (size_t i = 0; i < kSlots; ++i) slots.emplace_back(memory + i * slot_bytes);
  }
  ~Ring() {
    try {
      queue.wait();  // copies still read the memory
    } catch (const Error&) {
      // Whoever needs what was being copied hears of it.
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// The next buffer, once its last copy has ended.
  Slot& free_slot() {
    Slot& s = slots[std::exchange(next, (next + 1) % kSlots)];
    if (s.used) s.copied.wait();
    return s;
  }
  void copy(Slot& s, void* to, size_t bytes) {
    queue.copy_in(to, s.data, bytes);
    s.copied.record(queue);
    s.used = true;
  }
};

struct CudaLinear {
  using Key = std::tuple<int64_t, DType, bool>;  // rows, output dtype, accumulate

  PackedWeights::Spec spec;
  std::byte* weights = nullptr;  // [out, in]
  float* bias = nullptr;         // [out], or null
  bf16* rounded_bias = nullptr;  // [out], or null
  std::map<Key, LinearChoice> memo;
  uint64_t memo_of = 0;  // the generation of choices that `memo` is from
};

namespace {

/// Choices of every GPU that this process has used.
class Choices {
 public:
  LinearChoices& of(int device) {
    auto& c = by_device_[device];
    if (!c)
      c = std::make_unique<LinearChoices>(
          io::default_cache_dir() / "linear.json",
          fmt::format("{}, cuBLASLt {}, skinny_linear {}", cuda::device_info(device).name,
                      cublaslt::version(), kSkinnyRevision));
    return *c;
  }
  void forget() {
    by_device_.clear();
    ++generation;
  }

  std::mutex mutex;
  uint64_t generation = 1;

 private:
  std::map<int, std::unique_ptr<LinearChoices>> by_device_;
};

Choices& choices() {
  static Choices c;
  return c;
}

LinearProduct product_of(const Tensor& y, const Tensor& x, const CudaLinear& w, bool accumulate) {
  return {.rows = x.rows(),
          .out = w.spec.out,
          .in = w.spec.in,
          .dtype = w.spec.dtype,
          .y_type = y.dtype(),
          .bias = w.spec.bias,
          .accumulate = accumulate};
}

bool fits(const LinearProduct& p, int stages) {
  return p.dtype == DType::bf16 && p.rows <= kSkinnyRows &&
         skinny_linear_fits(static_cast<int>(p.rows), static_cast<int>(p.in), stages);
}

/// Our kernel with the two numbers of loads in flight that can be the fastest: the most that fit.
std::vector<LinearChoice> skinny_candidates(const LinearProduct& p) {
  std::vector<LinearChoice> found;
  for (const int stages : {8, 6, 5, 4, 3})
    if (found.size() < 2 && fits(p, stages)) found.push_back({.skinny = true, .stages = stages});
  return found;
}

std::vector<LinearChoice> library_candidates(const LinearProduct& p, int device, int most) {
  std::vector<LinearChoice> found;
  for (const auto& a : cublaslt::candidates(device, p, kWorkspaceBytes, most))
    found.push_back({.algorithm = a});
  return found;
}

bool usable(const LinearChoice& c, const LinearProduct& p, int device) {
  return c.skinny ? fits(p, c.stages) : cublaslt::can_run(device, p, c.algorithm, kWorkspaceBytes);
}

/// Of an operation fused with what comes before or after it; its outputs are activations.
LinearProduct fused_product(const CudaLinear& w, int64_t rows) {
  return {.rows = rows,
          .out = w.spec.out,
          .in = w.spec.in,
          .dtype = w.spec.dtype,
          .y_type = w.spec.dtype,
          .bias = w.spec.bias};
}

// Rows up to which our kernel is the best as a rule, on an H200 with the layers of an 8B model.
constexpr int64_t kOursUpTo = 8;

/// What is best as a rule; costs no work on the GPU.
LinearChoice default_choice(const LinearProduct& p, int device) {
  const auto ours = skinny_candidates(p);
  if (!ours.empty() && p.rows <= kOursUpTo) return ours.front();
  const auto theirs = library_candidates(p, device, 1);
  if (theirs.empty())
    throw Error::make(ErrorKind::device, Device{Device::Kind::cuda, device}.name(),
                      "cuBLASLt {} has no product of {} rows, [{}, {}] {}", cublaslt::version(),
                      p.rows, p.out, p.in, dtype_name(p.dtype));
  return theirs.front();
}

void run_skinny(int stages, const LinearProduct& p, const Tensor& y, const Tensor& x,
                const CudaLinear& w, const LinearFusion& fusion, Stream stream) {
  TANDEM_CHECK(reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0, "{}: unaligned input", w.spec.name);
  cuda_table().skinny_linear({.y = y.raw(),
                              .x = x.raw(),
                              .w = reinterpret_cast<const bf16*>(w.weights),
                              .bias = w.bias,
                              .norm_weight = fusion.norm_weight,
                              .norm_eps = fusion.norm_eps,
                              .rows = static_cast<int>(p.rows),
                              .out = static_cast<int>(p.out),
                              .in = static_cast<int>(p.in),
                              .y_type = p.y_type,
                              .accumulate = p.accumulate,
                              .swiglu = fusion.swiglu,
                              .stages = stages},
                             stream);
}

void run_choice(const LinearChoice& c, const LinearProduct& p, const Tensor& y, const Tensor& x,
                const CudaLinear& w, std::span<std::byte> workspace, Stream stream) {
  if (c.skinny) {
    run_skinny(c.stages, p, y, x, w, {}, stream);
  } else {
    const void* bias = p.y_type == DType::bf16 ? static_cast<const void*>(w.rounded_bias) : w.bias;
    cublaslt::run(w.spec.device.index, p, c.algorithm,
                  {.y = y.raw(),
                   .x = x.raw(),
                   .w = w.weights,
                   .bias = bias,
                   .workspace = workspace.data(),
                   .workspace_bytes = kWorkspaceBytes},
                  stream);
  }
  cuda::launched("linear", stream);
}

/// Microseconds of one product among many, each with the next of the weights.
double measure(const LinearChoice& c, const LinearProduct& p, const Tensor& y, const Tensor& x,
               std::span<CudaLinear* const> alike, std::span<std::byte> workspace,
               cuda::Queue& queue) {
  // Enough products for half a millisecond at the rates of an H200; the median of five.
  constexpr double kSpan = 500, kBytesPerMicrosecond = 4e6, kFlopsPerMicrosecond = 6e8,
                   kOverhead = 2;
  constexpr int kRepeats = 5;
  const double weights = static_cast<double>(p.out * p.in);
  const double expected =
      kOverhead +
      std::max(weights * static_cast<double>(dtype_bytes(p.dtype)) / kBytesPerMicrosecond,
               2 * weights * static_cast<double>(p.rows) / kFlopsPerMicrosecond);
  const int n = static_cast<int>(std::clamp(kSpan / expected, 2.0, 32.0));
  const cuda::Graph graph(queue, [&] {
    for (int i = 0; i < n; ++i)
      run_choice(c, p, y, x, *alike[static_cast<size_t>(i) % alike.size()], workspace,
                 queue.stream());
  });
  cuda::Event begin(true), end(true);
  std::array<float, kRepeats + 1> ms{};
  for (float& t : ms) {
    begin.record(queue);
    graph.launch(queue);
    end.record(queue);
    end.wait();
    t = end.ms_since(begin);
  }
  std::sort(ms.begin() + 1, ms.end());  // the first one warms up
  return double{ms[1 + kRepeats / 2]} * 1e3 / n;
}

const LinearChoice& choose(CudaLinear& w, const LinearProduct& p) {
  Choices& all = choices();
  const std::scoped_lock lock(all.mutex);
  if (w.memo_of != all.generation || w.memo.size() >= kMaxMemo) w.memo.clear();
  w.memo_of = all.generation;
  const CudaLinear::Key key{p.rows, p.y_type, p.accumulate};
  if (const auto it = w.memo.find(key); it != w.memo.end()) return it->second;
  const int device = w.spec.device.index;
  const auto kept = all.of(device).find(p);
  return w.memo[key] = kept && usable(*kept, p, device) ? *kept : default_choice(p, device);
}

}  // namespace

namespace linear_cuda {

size_t bytes(const PackedWeights::Spec& spec) { return Places(spec).end; }

size_t staging_bytes(const PackedWeights::Spec& spec) {
  const size_t row = static_cast<size_t>(spec.in) * dtype_bytes(spec.dtype);
  const size_t all = static_cast<size_t>(spec.out) * row;
  return kSlots * aligned(std::max(row, std::min(all, kSlotBytes)));
}

size_t workspace_bytes(const PackedWeights::Spec&, int64_t) { return kWorkspaceBytes; }

std::shared_ptr<Staging::Ring> make_ring(Device device, void* memory, size_t bytes) {
  return std::make_shared<Staging::Ring>(device.index, static_cast<std::byte*>(memory), bytes);
}

void wait(Staging::Ring& ring) { ring.queue.wait(); }

std::shared_ptr<CudaLinear> load(const PackedWeights::Spec& spec, std::byte* memory,
                                 const PackedWeights::RowSource& rows, std::span<const float> bias,
                                 Staging::Ring& ring,
                                 const PackedWeights::DeviceRowSource& device_rows) {
  const Places at(spec);
  auto w = std::make_shared<CudaLinear>();
  w->spec = spec;
  w->weights = memory;
  if (spec.bias) {
    w->bias = reinterpret_cast<float*>(w->weights + at.bias);
    w->rounded_bias = reinterpret_cast<bf16*>(w->weights + at.rounded_bias);
    std::vector<bf16> rounded;
    for (const float b : bias) rounded.push_back(to_bf16(b));
    ring.queue.copy_in(w->bias, bias.data(), bias.size_bytes());
    ring.queue.copy_in(w->rounded_bias, rounded.data(), rounded.size() * sizeof(bf16));
    ring.queue.wait();  // the sources go
  }
  if (device_rows && device_rows(0, spec.out, w->weights, ring.queue.stream())) return w;

  const size_t row = static_cast<size_t>(spec.in) * dtype_bytes(spec.dtype);
  const auto step = static_cast<int64_t>(ring.slot_bytes / row);
  TANDEM_CHECK(step > 0, "{}: staging of {} bytes for rows of {}", spec.name, ring.slot_bytes, row);
  for (int64_t begin = 0; begin < spec.out; begin += step) {
    const int64_t end = std::min(spec.out, begin + step);
    Staging::Ring::Slot& slot = ring.free_slot();
    rows(begin, end, slot.data);
    ring.copy(slot, w->weights + static_cast<size_t>(begin) * row,
              static_cast<size_t>(end - begin) * row);
  }
  return w;
}

void run(const Tensor& y, const Tensor& x, CudaLinear& w, bool accumulate,
         std::span<std::byte> workspace, Stream stream) {
  TANDEM_CHECK(workspace.size() >= kWorkspaceBytes, "{}: workspace of {} bytes", w.spec.name,
               workspace.size());
  const LinearProduct p = product_of(y, x, w, accumulate);
  run_choice(choose(w, p), p, y, x, w, workspace, stream);
}

void* rows(const CudaLinear& w) { return w.weights; }

bool can_fuse(const CudaLinear& w, int64_t rows) {
  return rows > 0 && rows <= kSkinnyRows && !skinny_candidates(fused_product(w, rows)).empty();
}

bool fusion_pays(CudaLinear& w, int64_t rows) {
  // The more rows, the less an operation of its own costs beside the product.
  return can_fuse(w, rows) && (rows <= kOursUpTo || choose(w, fused_product(w, rows)).skinny);
}

void run_fused(const Tensor& y, const Tensor& x, const LinearFusion& fusion, CudaLinear& w,
               bool accumulate, std::span<std::byte> workspace, Stream stream) {
  TANDEM_CHECK(workspace.size() >= kWorkspaceBytes, "{}: workspace of {} bytes", w.spec.name,
               workspace.size());
  const LinearProduct p = product_of(y, x, w, accumulate);
  const LinearChoice& chosen = choose(w, p);
  const int stages = chosen.skinny ? chosen.stages : skinny_candidates(p).front().stages;
  run_skinny(stages, p, y, x, w, fusion, stream);
  cuda::launched("linear_fused", stream);
}

void prepare(const Tensor& y, const Tensor& x, std::span<CudaLinear* const> alike, bool accumulate,
             std::span<std::byte> workspace, Stream stream) {
  const int device = alike[0]->spec.device.index;
  const LinearProduct p = product_of(y, x, *alike[0], accumulate);
  Choices& all = choices();
  const std::scoped_lock lock(all.mutex);
  if (const auto kept = all.of(device).find(p); kept && usable(*kept, p, device)) return;

  cuda::wait(stream);
  cuda::Queue queue(device);
  std::vector<LinearChoice> candidates = skinny_candidates(p);
  std::ranges::copy(library_candidates(p, device, kLibraryCandidates),
                    std::back_inserter(candidates));
  LinearChoice best = default_choice(p, device);
  best.microseconds = 1e30;
  for (LinearChoice& c : candidates) {
    c.microseconds = measure(c, p, y, x, alike, workspace, queue);
    if (c.microseconds < best.microseconds) best = c;
  }
  all.of(device).keep(p, best);
  ++all.generation;  // what was taken without measurement is chosen again
}

void forget_choices() {
  Choices& all = choices();
  const std::scoped_lock lock(all.mutex);
  all.forget();
}

bool warm_up(DType dtype, int device) {
  static std::set<std::pair<DType, int>> done;
  if (done.contains({dtype, device})) return false;
  (void)library_candidates({.rows = 64, .out = 64, .in = 64, .dtype = dtype}, device, 1);
  done.insert({dtype, device});
  return true;
}

}  // namespace linear_cuda

}  // namespace tandem::ops
