// Dense layers on a GPU: their weights, and which kernels they run on.
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "base/check.h"
#include "base/parallel.h"
#include "io/cache_dir.h"
#include "ops/cublaslt.h"
#include "ops/linear_device.h"
#include "ops/linear_kernels.h"
#include "ops/operation.h"
#include "ops/quantizing.h"
#include "tensor/gpu_isa.h"

namespace tandem::ops {
namespace {

// Choices kept beside weights; ragged prefills ask for many row counts.
constexpr size_t kMaxMemo = 256;

}  // namespace

struct Staging::Ring {
  struct Slot {
    std::byte* data;
    cuda::Event copied;
    bool used = false;
    explicit Slot(std::byte* p) : data(p) {}
  };

  cuda::PinnedRange pinned;
  cuda::PinnedBuffer refused{sizeof(int)};  // number of a product in `refusals`, 0: none
  std::vector<std::function<void()>> refusals;
  cuda::Queue queue;
  size_t slot_bytes;
  std::deque<Slot> slots;
  size_t next = 0;

  Ring(int device, std::byte* memory, size_t bytes)
      : pinned(memory, bytes), queue(device), slot_bytes(bytes / linear_cuda::kStagingSlots) {
    new (refused.data()) int(0);
    for (size_t i = 0; i < linear_cuda::kStagingSlots; ++i)
      slots.emplace_back(memory + i * slot_bytes);
  }
  ~Ring() {
    try {
      queue.wait();  // copies still read the memory
    } catch (const Error&) {
      // The next use of what was being copied reports it.
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// The next buffer, once its last copy has ended.
  Slot& free_slot() {
    Slot& s = slots[std::exchange(next, (next + 1) % linear_cuda::kStagingSlots)];
    if (s.used) s.copied.wait();
    return s;
  }
  void copy(Slot& s, void* to, size_t bytes) {
    queue.copy_in(to, s.data, bytes);
    sent(s);
  }
  /// All that reads a slot's memory is on the queue.
  void sent(Slot& s) {
    s.copied.record(queue);
    s.used = true;
  }
};

namespace {

/// Choices of every GPU that this process has used.
class Choices {
 public:
  LinearChoices& of(int device) {
    auto& c = by_device_[device];
    if (!c)
      c = std::make_unique<LinearChoices>(io::cache_file("linear.json"),
                                          fmt::format("{}, {}, {}", cuda::device_info(device).name,
                                                      cuda::gpu_isa_name(cuda::gpu_of(device).isa),
                                                      linear_cuda::kernel_versions()));
    return *c;
  }
  void forget() {
    by_device_.clear();
    ++generation;
  }

  std::mutex mutex;  // of all but the generation
  std::atomic<uint64_t> generation = 1;

 private:
  std::map<int, std::unique_ptr<LinearChoices>> by_device_;
};

Choices& choices() {
  static Choices c;
  return c;
}

LinearProduct product_of(const CudaLinear& w, int64_t rows, DType y_type, bool accumulate,
                         std::optional<Gate> gate) {
  return {.rows = rows,
          .out = w.spec.out,
          .in = w.spec.in,
          .stored = w.spec.stored,
          .input = w.spec.input,
          .by_input = w.spec.by_input,
          .y_type = y_type,
          .bias = w.spec.bias,
          .accumulate = accumulate,
          .gate = gate};
}

/// Of an operation fused with what comes before or after it; its outputs are activations.
LinearProduct fused_product(const CudaLinear& w, int64_t rows, std::optional<Gate> gate) {
  return product_of(w, rows, w.spec.input, false, gate);
}

LinearChoice choose(CudaLinear& w, const LinearProduct& p) {
  Choices& all = choices();
  const std::scoped_lock memo_lock(w.mutex);
  const uint64_t generation = all.generation;
  if (w.memo_of != generation || w.memo.size() >= kMaxMemo) w.memo.clear();
  w.memo_of = generation;
  const CudaLinear::Key key{p.rows, p.y_type, p.accumulate, p.gate};
  if (const auto it = w.memo.find(key); it != w.memo.end()) return it->second;
  const int device = w.spec.device.index;
  const std::scoped_lock lock(all.mutex);
  const auto kept = all.of(device).find(p);
  return w.memo[key] = kept && linear_cuda::usable(*kept, p, device)
                           ? *kept
                           : linear_cuda::default_choice(p, device);
}

}  // namespace

namespace linear_cuda {

std::optional<LinearChoice> kept_choice(const std::string& words, int device) {
  Choices& all = choices();
  const std::scoped_lock lock(all.mutex);
  return all.of(device).find(words);
}

void keep_choice(const std::string& words, const LinearChoice& c, int device) {
  Choices& all = choices();
  const std::scoped_lock lock(all.mutex);
  all.of(device).keep(words, c);
  ++all.generation;
}

uint64_t choices_generation() { return choices().generation; }

std::shared_ptr<Staging::Ring> make_ring(Device device, void* memory, size_t bytes) {
  return std::make_shared<Staging::Ring>(device.index, static_cast<std::byte*>(memory), bytes);
}

void wait(Staging::Ring& ring) {
  ring.queue.wait();
  int number = 0;
  std::memcpy(&number, ring.refused.data(), sizeof number);
  if (number == 0) return;
  ring.refusals[static_cast<size_t>(number - 1)]();
  TANDEM_CHECK(false, "a GPU found NaN or infinity, and its source none");
}

namespace {

std::shared_ptr<CudaLinear> at_memory(const PackedWeights::Spec& spec, std::byte* memory) {
  const Places at(spec);
  auto w = std::make_shared<CudaLinear>();
  w->spec = spec;
  w->weights = memory;
  if (spec.has_codes()) w->parts = at.parts;
  for (Part& part : w->parts) part.tiles.data = reinterpret_cast<uint8_t*>(memory + part.at);
  if (!spec.bias) return w;
  w->bias = reinterpret_cast<float*>(memory + at.bias);
  w->rounded_bias = reinterpret_cast<bf16*>(memory + at.rounded_bias);
  return w;
}

/// Calls read(begin, end, place) for outputs [begin, end), which rows of tiles [first, first + n)
/// of a part hold from `place` on.
void each_run(const Part& part, int64_t first, int64_t n, const auto& read) {
  const CodeTiles& t = part.tiles;
  const int outputs = t.outputs(as_int(first), as_int(n));
  const int64_t begin = part.first + first * t.step();
  read(begin, begin + outputs, 0);
  if (t.paired) read(begin + t.out / 2, begin + t.out / 2 + outputs, outputs);
}

/// Fills a part's memory with tiles that the GPU makes of numbers. It reads them in their slot, in
/// pinned memory.
void quantize_part(const CudaLinear& w, const Part& part, const PackedWeights::Unquantized& numbers,
                   Staging::Ring& ring) {
  const CodeTiles& t = part.tiles;
  const size_t row = row_bytes(numbers.type, w.spec.in);
  const auto step = static_cast<int64_t>(ring.slot_bytes / (kTileOutputs * row));
  TANDEM_CHECK(step > 0, "{}: staging of {} bytes cannot hold 16 rows of {}", w.spec.name,
               ring.slot_bytes, row);
  ring.refusals.push_back(numbers.refuse);
  for (int64_t first = 0; first < t.down(); first += step) {
    const int64_t n = std::min(step, t.down() - first);
    Staging::Ring::Slot& slot = ring.free_slot();
    each_run(part, first, n, [&](int64_t begin, int64_t end, int place) {
      std::byte* const to = slot.data + static_cast<size_t>(place) * row;
      if (!numbers.device_rows || !numbers.device_rows(begin, end, to, ring.queue.stream()))
        numbers.rows(begin, end, to);
    });
    launch(TANDEM_KERNEL(quantize_tiles),
           {.to = reinterpret_cast<uint8_t*>(w.weights + part.at) + first * t.row_bytes(),
            .tiles = t,
            .numbers = slot.data,
            .type = numbers.type,
            .search = numbers.search,
            .first = as_int(first),
            .n = as_int(n),
            .refused = reinterpret_cast<int*>(ring.refused.data()),
            .number = as_int(std::ssize(ring.refusals))},
           ring.queue.stream());
    ring.sent(slot);
  }
}

/// Fills a part's memory. Codes become tiles in the slot that they come in.
void load_part(const CudaLinear& w, const Part& part, const PackedWeights::RowSource& rows,
               Staging::Ring& ring) {
  const CodeTiles& t = part.tiles;
  const bool coded = is_coded(part.stored);
  const size_t row = row_bytes(part.stored, w.spec.in);
  const int64_t n_units = coded ? t.down() : t.out;  // rows of tiles, or of numbers
  const size_t rows_bytes = coded ? static_cast<size_t>(t.outputs_of_tile()) * row : row;
  const size_t unit_bytes = coded ? static_cast<size_t>(t.row_bytes()) : row;
  const auto step = static_cast<int64_t>(ring.slot_bytes / (rows_bytes + (coded ? unit_bytes : 0)));
  TANDEM_CHECK(step > 0, "{}: staging of {} bytes cannot hold 16 rows of {}", w.spec.name,
               ring.slot_bytes, row);
  for (int64_t first = 0; first < n_units; first += step) {
    const int64_t n = std::min(step, n_units - first);
    Staging::Ring::Slot& slot = ring.free_slot();
    std::byte* units = slot.data;
    if (coded) {
      each_run(part, first, n, [&](int64_t begin, int64_t end, int place) {
        rows(begin, end, slot.data + static_cast<size_t>(place) * row);
      });
      units += static_cast<size_t>(n) * rows_bytes;
      const PlaceCodesParams params{.to = reinterpret_cast<uint8_t*>(units),
                                    .tiles = t,
                                    .rows = reinterpret_cast<const uint8_t*>(slot.data),
                                    .row_bytes = static_cast<int64_t>(row),
                                    .row_code = part.stored.code,
                                    .row_scale = part.stored.scale,
                                    .first = as_int(first),
                                    .n = as_int(n)};
      parallel_ranges(as_int(n), 1, [&](int i, int j) { place_codes(params, {i, j}); });
    } else {
      rows(part.first + first, part.first + first + n, units);
    }
    ring.queue.copy_in(w.weights + part.at + static_cast<size_t>(first) * unit_bytes, units,
                       static_cast<size_t>(n) * unit_bytes);
    ring.sent(slot);
  }
}

}  // namespace

std::shared_ptr<CudaLinear> moved(const CudaLinear& w, ptrdiff_t bytes) {
  return at_memory(w.spec, w.weights + bytes);
}

std::shared_ptr<CudaLinear> load(const PackedWeights::Spec& spec, std::byte* memory,
                                 const PackedWeights::RowSource& rows, std::span<const float> bias,
                                 Staging::Ring& ring,
                                 const PackedWeights::DeviceRowSource& device_rows,
                                 const PackedWeights::Unquantized& numbers) {
  auto w = at_memory(spec, memory);
  if (spec.bias) {
    std::vector<bf16> rounded;
    for (const float b : bias) rounded.push_back(to_bf16(b));
    ring.queue.copy_in(w->bias, bias.data(), bias.size_bytes());
    ring.queue.copy_in(w->rounded_bias, rounded.data(), rounded.size() * sizeof(bf16));
    ring.queue.wait();  // the sources go
  }
  for (const Part& part : w->parts)
    if (numbers.rows && is_coded(part.stored) && is_quantized_to(part.stored) && !spec.by_input &&
        cuda_table().quantize_tiles_fits(part.tiles, numbers.type))
      quantize_part(*w, part, numbers, ring);
    else
      load_part(*w, part, rows, ring);
  if (!w->parts.empty()) return w;
  if (!spec.by_input && device_rows && device_rows(0, spec.out, w->weights, ring.queue.stream()))
    return w;

  TANDEM_CHECK(spec.source_in == 0 || spec.by_input,
               "{}: columns of the source need weights stored by input", spec.name);
  const size_t row = row_bytes(spec.stored, spec.row_numbers());
  const auto step = static_cast<int64_t>(ring.slot_bytes / row);
  TANDEM_CHECK(step > 0, "{}: staging of {} bytes cannot hold a row of {}", spec.name,
               ring.slot_bytes, row);
  for (int64_t begin = 0; begin < spec.out; begin += step) {
    const int64_t end = std::min(spec.out, begin + step);
    Staging::Ring::Slot& slot = ring.free_slot();
    // The GPU reads and writes a slot where it lies, in pinned memory.
    const bool on_device =
        spec.by_input && device_rows && device_rows(begin, end, slot.data, ring.queue.stream());
    if (!on_device) rows(begin, end, slot.data);
    if (spec.by_input) {
      launch(TANDEM_KERNEL(transpose_rows),
             {.to = w->weights,
              .from = slot.data + row_bytes(spec.stored, spec.first_in),
              .from_stride = spec.row_numbers(),
              .height = spec.out,
              .width = spec.in,
              .first = begin,
              .n_rows = end - begin,
              .type = numbers_of(spec.stored)},
             ring.queue.stream());
      ring.sent(slot);
      continue;
    }
    ring.copy(slot, w->weights + static_cast<size_t>(begin) * row,
              static_cast<size_t>(end - begin) * row);
  }
  return w;
}

void run(const Operands& at, CudaLinear& w, bool accumulate, std::optional<Gate> gate,
         Stream stream) {
  TANDEM_CHECK(at.workspace.size() >= kWorkspaceBytes, "{}: workspace of {} bytes is too small",
               w.spec.name, at.workspace.size());
  if (!w.parts.empty()) return coded::run(at, w, accumulate, gate, stream);
  const LinearProduct p = product_of(w, at.x.rows(), at.y.dtype(), accumulate, gate);
  run_choice(choose(w, p), p, at, w, stream);
}

void* rows(const CudaLinear& w) { return w.parts.empty() ? w.weights : nullptr; }

const CodeTiles* codes(const CudaLinear& w) {
  return w.parts.size() == 1 ? &w.parts.front().tiles : nullptr;
}

float* bias(const CudaLinear& w) { return w.bias; }

void* rounded_bias(const CudaLinear& w) { return w.rounded_bias; }

bool can_fuse(const CudaLinear& w, int64_t rows, bool norm, bool gated) {
  if (!w.parts.empty()) return coded::can_fuse(w, rows, norm, gated);
  return rows > 0 && rows <= kSkinnyRows &&
         !skinny_candidates(fused_product(w, rows, {}), norm).empty();
}

bool fusion_pays(CudaLinear& w, int64_t rows, bool norm, std::optional<Gate> gate) {
  return can_fuse(w, rows, norm, gate.has_value()) && (!norm || rows * w.spec.in <= kNormedUpTo) &&
         (rows <= kSkinnyUpTo || !w.parts.empty() ||
          choose(w, fused_product(w, rows, gate)).kernel == LinearChoice::Kernel::skinny);
}

void run_fused(const Tensor& y, const Tensor& x, const LinearFusion& fusion, CudaLinear& w,
               bool accumulate, Stream stream) {
  if (!w.parts.empty())
    return coded::run_fused({.y = y, .x = x, .gate_up = {}, .workspace = {}}, fusion, w, accumulate,
                            stream);
  const LinearProduct p = product_of(w, x.rows(), y.dtype(), accumulate, fusion.gate);
  const LinearChoice chosen = choose(w, p);
  const int stages = chosen.kernel == LinearChoice::Kernel::skinny
                         ? chosen.stages
                         : skinny_candidates(p, fusion.norm_weight != nullptr).front().stages;
  run_skinny(stages, p, {.y = y, .x = x, .gate_up = {}, .workspace = {}}, w, fusion, stream);
}

void tune(const Operands& at, std::span<CudaLinear* const> alike, bool accumulate,
          std::optional<Gate> gate, const LinearNeighbours& around, Stream stream) {
  const int device = alike[0]->spec.device.index;
  const LinearProduct p = product_of(*alike[0], at.x.rows(), at.y.dtype(), accumulate, gate);
  Choices& all = choices();
  {
    const std::scoped_lock lock(all.mutex);
    if (const auto kept = all.of(device).find(p); kept && usable(*kept, p, device)) return;
  }
  cuda::wait(stream);
  // Without the lock: neighbours are products, which look for their own choices.
  cuda::Queue queue(device);
  LinearChoice best = default_choice(p, device);
  best.microseconds = 1e30;
  for (LinearChoice& c : candidates(p, device)) {
    c.microseconds = measure(c, p, at, alike, around, queue);
    if (c.microseconds < best.microseconds) best = c;
  }
  const std::scoped_lock lock(all.mutex);
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
  constexpr int64_t kSize = 64;
  (void)cublaslt::candidates(device,
                             {.m = kSize,
                              .n = kSize,
                              .k = kSize,
                              .a_stride = kSize,
                              .b_stride = kSize,
                              .c_stride = kSize,
                              .type = dtype,
                              .a_alignment = 16,
                              .b_alignment = 16,
                              .c_alignment = 16},
                             kWorkspaceBytes, 1);
  done.insert({dtype, device});
  return true;
}

}  // namespace linear_cuda

}  // namespace tandem::ops
