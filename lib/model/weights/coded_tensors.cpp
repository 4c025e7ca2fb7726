#include "model/weights/coded_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/convert.h"
#include "base/divide_up.h"
#include "base/error.h"
#include "base/parallel.h"
#include "io/quote.h"
#include "model/families/family.h"
#include "model/weights/pack_quantized.h"
#include "model/weights/weight_source.h"
#include "ops/loading.h"

namespace tandem::model {
namespace {

using Codes = QuantScheme::Codes;

/// Weights of a strip, which is unpacked at once: of columns by all threads, of rows by one.
constexpr int64_t kStripWeights = int64_t{1} << 22, kRowStripWeights = int64_t{1} << 18;
constexpr int kOutputsAtOnce = 64;
constexpr int kWordBits = 32;
constexpr const char* kSameFolder = "take config.json and the weights from the same folder";

/// The tensors of a method's matrices.
struct Layout {
  QuantMethod method;
  Codes codes;
  std::string_view name;  // in messages
  std::string_view code, code_type, zero, scale;
  bool by_output;      // rows are outputs, else columns are
  bool packs_outputs;  // a word has codes of neighbouring outputs, else of inputs
};

constexpr std::array kLayouts = {
    Layout{QuantMethod::compressed_tensors, Codes::packed, "compressed-tensors, packed",
           pack_quantized::kCodes, "I32", pack_quantized::kZeros, pack_quantized::kScales, true,
           false},
    Layout{QuantMethod::awq, Codes::packed, "AWQ", ".qweight", "I32", ".qzeros", ".scales", false,
           true},
    Layout{QuantMethod::gptq, Codes::packed, "GPTQ", ".qweight", "I32", ".qzeros", ".scales", false,
           false},
    Layout{QuantMethod::compressed_tensors, Codes::int8, "compressed-tensors, int8", ".weight",
           "I8", pack_quantized::kZeros, pack_quantized::kScales, true, false},
    Layout{QuantMethod::compressed_tensors, Codes::fp8, "compressed-tensors, fp8", ".weight",
           "F8_E4M3", "", pack_quantized::kScales, true, false},
    Layout{QuantMethod::fp8, Codes::fp8, "fp8", ".weight", "F8_E4M3", "", ".weight_scale_inv", true,
           false}};

const Layout& layout_of(QuantMethod method, Codes codes) {
  const auto* const at = std::ranges::find_if(
      kLayouts, [&](const Layout& l) { return l.method == method && l.codes == codes; });
  TANDEM_CHECK(at != kLayouts.end(), "{} has no such codes", method_name(method));
  return *at;
}

/// The names of the methods that store a module so; empty if none does.
/// wanted   is left out
std::string methods_of(const Checkpoint& checkpoint, const std::string& module,
                       const Layout* wanted) {
  std::vector<std::string_view> found;
  for (const Layout& l : kLayouts) {
    const io::TensorEntry* codes = checkpoint.find(module + std::string(l.code));
    const bool orders = checkpoint.contains(module + ".g_idx");
    if (&l != wanted && codes != nullptr && codes->dtype == l.code_type &&
        checkpoint.contains(module + std::string(l.scale)) &&
        !(l.method == QuantMethod::awq && orders))
      found.push_back(l.name);
  }
  for (const auto& [end, name] : {std::pair{".weight.quant_map", "bitsandbytes"},
                                  {".weight.absmax", "bitsandbytes"},
                                  {".weight_blocks", "MXFP4"}})
    if (checkpoint.contains(module + end)) found.push_back(name);
  return fmt::format("{}", fmt::join(found, " or "));
}

int per_word(const CodedTensor& t) {
  return t.scheme.codes == Codes::packed ? kWordBits / t.scheme.bits : 1;
}

int64_t group_size(const CodedTensor& t) {
  return t.scheme.inputs == 0 ? t.in : std::min(t.scheme.inputs, t.in);
}
int64_t n_groups(const CodedTensor& t) { return divide_up(t.in, group_size(t)); }
int64_t n_scale_outputs(const CodedTensor& t) {
  return t.scheme.outputs == 0 ? 1 : divide_up(t.out, t.scheme.outputs);
}

size_t element_bytes(const CodedPart& p) {
  if (p.dtype == "I8" || p.dtype == "F8_E4M3") return 1;
  return p.dtype == "F32" || p.dtype == "I32" ? 4 : 2;
}

/// A tensor in the shape that a method gives it.
/// n        elements along the other side than outputs
std::string find_part(const Checkpoint& checkpoint, const std::string& name, bool by_output,
                      int64_t n_outputs, int64_t n, std::initializer_list<std::string_view> types,
                      CodedPart& part) {
  const io::Shape shape = by_output ? io::Shape{n_outputs, n} : io::Shape{n, n_outputs};
  const io::TensorEntry* entry = checkpoint.find(name);
  if (entry == nullptr)
    return fmt::format("{}: missing, expected shape {}", name, io::shape_text(shape));
  // A scale of all weights may lack one or both sides, a scale of a row the second.
  io::Shape found = entry->shape;
  if (n == 1 && (found.empty() || found.back() == n_outputs) && found.size() < 2)
    found.resize(2, 1);
  if (found != shape)
    return fmt::format("{}: expected shape {}, found {}", name, io::shape_text(shape),
                       io::shape_text(entry->shape));
  if (std::ranges::find(types, entry->dtype) == types.end())
    return fmt::format("{}: expected {}, found {}", name, fmt::join(types, " or "), entry->dtype);
  part = {name, entry->dtype, checkpoint.bytes(name), by_output, n_outputs, n};
  return {};
}

template <class T>
std::vector<T> all_of(const Checkpoint& checkpoint, const io::TensorView& bytes) {
  std::vector<T> values(bytes.bytes.size() / sizeof(T));
  checkpoint.read(bytes, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

/// Compares the shape that compressed-tensors stores with packed codes.
std::string shape_problem(const Checkpoint& checkpoint, const CodedTensor& t) {
  const std::string name = t.module + std::string(pack_quantized::kShape);
  const io::TensorEntry* entry = checkpoint.find(name);
  if (entry == nullptr) return {};
  if (entry->dtype != "I64" || entry->shape != io::Shape{2})
    return fmt::format("{}: expected I64 of shape [2], found {} of shape {}", name, entry->dtype,
                       io::shape_text(entry->shape));
  const io::Shape found = all_of<int64_t>(checkpoint, checkpoint.bytes(name));
  if (found == io::Shape{t.out, t.in}) return {};
  return fmt::format("{}: says {}, but config.json requires {}", name, io::shape_text(found),
                     io::shape_text({t.out, t.in}));
}

/// Finds the tensors of a quantized matrix, whose module, scheme and size are set.
std::string find_parts(const Checkpoint& checkpoint, CodedTensor& t) {
  const Layout& l = layout_of(t.method, t.scheme.codes);
  const int64_t out = t.out, in = t.in, groups = n_groups(t), word = per_word(t);
  const auto named = [&](std::string_view end) { return t.module + std::string(end); };
  std::string problem = find_part(
      checkpoint, named(l.code), l.by_output, l.packs_outputs ? divide_up(out, word) : out,
      l.packs_outputs ? in : divide_up(in, word), {l.code_type}, t.codes);
  if (!problem.empty()) {
    const std::string others = methods_of(checkpoint, t.module, &l);
    return others.empty() ? problem
                          : fmt::format("{}; the tensors are those of {}, but config.json says {}",
                                        problem, others, l.name);
  }
  // Programs store zeros where config.json calls codes symmetric: zeros decide.
  const std::string zeros = named(l.zero);
  const io::TensorEntry* zero_entry = l.zero.empty() ? nullptr : checkpoint.find(zeros);
  // Old versions of compressed-tensors do not pack them.
  const bool bytes = l.by_output && zero_entry != nullptr && zero_entry->dtype == "I8";
  if (zero_entry != nullptr || !t.scheme.symmetric)
    problem = find_part(checkpoint, zeros, l.by_output, bytes ? out : divide_up(out, word), groups,
                        {bytes ? "I8" : l.code_type}, t.zeros);
  if (!problem.empty()) return problem;
  // AutoFP8 has another name for it.
  std::string scales = named(l.scale);
  if (!checkpoint.contains(scales) && checkpoint.contains(named(pack_quantized::kScales)))
    scales = named(pack_quantized::kScales);
  problem = find_part(checkpoint, scales, l.by_output, n_scale_outputs(t), groups,
                      {"F16", "BF16", "F32"}, t.scales);
  if (!problem.empty()) return problem;
  const std::string order = named(".g_idx"), packed_order = named(".weight_g_idx");
  if (checkpoint.contains(packed_order))
    return fmt::format("{}: act-order is not supported in compressed-tensors folders",
                       packed_order);
  CodedPart index;
  if (t.method == QuantMethod::gptq && checkpoint.contains(order))
    problem = find_part(checkpoint, order, true, in, 1, {"I32"}, index);
  if (problem.empty() && l.scale == pack_quantized::kScales && t.scheme.codes == Codes::packed)
    problem = shape_problem(checkpoint, t);
  return problem;
}

/// The module of a tensor's name; empty if it is no matrix of a linear layer.
std::string module_of(const std::string& tensor) {
  constexpr std::string_view kEnd = ".weight";
  return tensor.ends_with(kEnd) ? tensor.substr(0, tensor.size() - kEnd.size()) : std::string();
}

/// The name of a module in the files, which may have other words in front.
std::string stored_name(const Checkpoint& checkpoint, const std::string& module) {
  for (const std::string_view end : {".weight", ".weight_packed", ".qweight"})
    if (const io::TensorEntry* entry = checkpoint.find(module + std::string(end)))
      return entry->name.substr(0, entry->name.size() - end.size());
  return module;
}

std::vector<float> floats_of(std::span<const std::byte> bytes, const CodedPart& p) {
  const DType type = p.dtype == "F32" ? DType::f32 : p.dtype == "F16" ? DType::f16 : DType::bf16;
  std::vector<float> values(bytes.size() / dtype_bytes(type));
  ops::convert(values.data(), DType::f32, bytes.data(), type, std::ssize(values));
  return values;
}

/// Elements [first, last) along outputs, in the order of the file.
std::vector<std::byte> fetch(const Checkpoint& checkpoint, const CodedPart& p, int64_t first,
                             int64_t last) {
  const size_t each = element_bytes(p);
  const auto bytes = [&](int64_t n) { return static_cast<size_t>(n) * each; };
  const int64_t width = last - first;
  std::vector<std::byte> out(bytes(width * p.n));
  if (p.by_output) {
    checkpoint.read(p.bytes, bytes(first * p.n), out);
    return out;
  }
  constexpr int kRows = 64;  // a thread reads no fewer
  parallel_ranges(static_cast<int>(p.n), kRows, [&](int begin, int end) {
    for (int64_t row = begin; row < end; ++row)
      checkpoint.read(p.bytes, bytes(row * p.n_outputs + first),
                      std::span(out).subspan(bytes(row * width), bytes(width)));
  });
  return out;
}

/// Codes of a word, which lie `lane_step` apart once unpacked.
struct Word {
  int bits, lanes;
  std::array<uint8_t, 8> shifts;
};

Word word_of(const CodedTensor& t) {
  Word w{t.scheme.bits, per_word(t), {}};
  // AWQ has even outputs in the low half of a word, odd ones in the high half.
  for (int i = 0; i < w.lanes; ++i)
    w.shifts[static_cast<size_t>(i)] = static_cast<uint8_t>(
        t.method == QuantMethod::awq ? i / 2 * w.bits + i % 2 * kWordBits / 2 : i * w.bits);
  return w;
}

/// Unpacks words into [outputs, stride] codes.
/// width    elements along outputs that `words` has
void unpack(const std::vector<std::byte>& words, const CodedPart& p, int64_t width,
            const Word& word, bool packs_outputs, int64_t stride, uint8_t* codes) {
  const int64_t lane_step = packs_outputs ? stride : 1,
                output_step = packs_outputs ? word.lanes * stride : stride,
                other_step = packs_outputs ? 1 : word.lanes;
  const uint32_t mask = (1u << word.bits) - 1;
  const auto unpack_one = [&](int64_t output, int64_t other, int64_t at) {
    uint32_t bits;
    std::memcpy(&bits, &words[static_cast<size_t>(at) * sizeof bits], sizeof bits);
    uint8_t* to = codes + output * output_step + other * other_step;
    for (int lane = 0; lane < word.lanes; ++lane)
      to[lane * lane_step] =
          static_cast<uint8_t>(bits >> word.shifts[static_cast<size_t>(lane)] & mask);
  };
  const int least = packs_outputs ? kOutputsAtOnce / word.lanes : kOutputsAtOnce;
  parallel_ranges(static_cast<int>(width), least, [&](int begin, int end) {
    // Few outputs at a time: their codes are written to as many lines.
    for (int64_t first = begin; first < end; first += least) {
      const int64_t last = std::min<int64_t>(first + least, end);
      if (p.by_output)
        for (int64_t output = first; output < last; ++output)
          for (int64_t other = 0; other < p.n; ++other)
            unpack_one(output, other, output * p.n + other);
      else
        for (int64_t other = 0; other < p.n; ++other)
          for (int64_t output = first; output < last; ++output)
            unpack_one(output, other, other * width + output);
    }
  });
}

/// Unsigned codes of outputs [first, last), which begins a word.
/// part     the codes or the zeros
/// stride   codes of a row of the result, whole words
std::vector<uint8_t> unpacked(const Checkpoint& checkpoint, const CodedTensor& t,
                              const CodedPart& part, bool packs_outputs, int64_t first,
                              int64_t last, int64_t stride) {
  if (part.dtype != "I32") {
    const std::vector<std::byte> bytes = fetch(checkpoint, part, first, last);
    std::vector<uint8_t> codes(static_cast<size_t>((last - first) * stride));
    const int middle = part.dtype == "I8" ? 1 << (t.scheme.bits - 1) : 0;
    for (int64_t row = 0; row < last - first; ++row)
      std::transform(bytes.begin() + row * part.n, bytes.begin() + (row + 1) * part.n,
                     codes.begin() + row * stride, [&](std::byte b) {
                       return static_cast<uint8_t>(static_cast<int>(b) + middle);
                     });
    return codes;
  }
  const Word word = word_of(t);
  const int64_t unit = packs_outputs ? word.lanes : 1, begin = first / unit,
                end = divide_up(last, unit);
  std::vector<uint8_t> codes(static_cast<size_t>((end - begin) * unit * stride));
  unpack(fetch(checkpoint, part, begin, end), part, end - begin, word, packs_outputs, stride,
         codes.data());
  return codes;
}

/// Zeros [outputs, groups] of outputs [first, last).
std::vector<uint8_t> zeros_of(const Checkpoint& checkpoint, const CodedTensor& t, bool less_one,
                              int64_t first, int64_t last) {
  std::vector<uint8_t> zeros = unpacked(checkpoint, t, t.zeros, true, first, last, n_groups(t));
  const auto mask = static_cast<uint8_t>((1u << t.scheme.bits) - 1);
  if (less_one)
    for (uint8_t& z : zeros) z = static_cast<uint8_t>(z + 1) & mask;
  return zeros;
}

const std::array<float, 256>& fp8_numbers() {
  static const std::array<float, 256> numbers = [] {
    std::array<float, 256> all{};
    for (size_t i = 0; i < all.size(); ++i) all[i] = fp8_number(static_cast<uint8_t>(i));
    return all;
  }();
  return numbers;
}

Error damaged(const Checkpoint& checkpoint, std::string text) {
  return input_error(checkpoint.where(), "{}", std::move(text))
      .hint(
          "the file is damaged or was written wrongly: fetch it again, or use another checkpoint");
}

/// Refuses scales that are no numbers, and those of a file that was never filled.
void check_scales(const Checkpoint& checkpoint, const CodedTensor& t,
                  std::span<const float> scales) {
  const auto bad = std::ranges::find_if_not(scales, [](float s) { return std::isfinite(s); });
  if (bad != scales.end())
    throw damaged(checkpoint, fmt::format("tensor {}: scale {} is {}, expected a finite number",
                                          io::quote(t.scales.name), bad - scales.begin(), *bad));
  if (std::ranges::all_of(scales, [](float s) { return s == 0; }))
    throw damaged(checkpoint, fmt::format("tensor {}: all {} scales are 0",
                                          io::quote(t.scales.name), scales.size()));
}

/// Reads the group of each input; keeps it only under act-order.
void read_order(const Checkpoint& checkpoint, CodedTensor& t) {
  const std::string name = t.module + ".g_idx";
  if (t.method != QuantMethod::gptq || !checkpoint.contains(name)) return;
  const auto index = all_of<int32_t>(checkpoint, checkpoint.bytes(name));
  const int64_t group = group_size(t), groups = n_groups(t);
  std::vector<int64_t> members(static_cast<size_t>(groups));
  bool runs = true;
  for (int64_t k = 0; k < t.in; ++k) {
    const int64_t g = index[static_cast<size_t>(k)];
    if (g < 0 || g >= groups)
      throw damaged(checkpoint, fmt::format("tensor {}: input {} has group {}, expected 0 to {}",
                                            io::quote(name), k, g, groups - 1));
    ++members[static_cast<size_t>(g)];
    runs = runs && g == k / group;
  }
  for (int64_t g = 0; g < groups; ++g)
    if (const int64_t want = std::min(group, t.in - g * group),
        found = members[static_cast<size_t>(g)];
        found != want)
      throw damaged(checkpoint,
                    fmt::format("tensor {}: group {} has {} inputs, expected {} (group_size {})",
                                io::quote(name), g, found, want, group));
  if (!runs) t.group_of = index;
}

/// Refuses zeros that differ from those of symmetric codes.
void check_symmetric(const Checkpoint& checkpoint, const CodedTensor& t, bool less_one) {
  const int middle = 1 << (t.scheme.bits - 1);
  std::bitset<256> found;
  constexpr int64_t kAtOnce = 4096;
  for (int64_t first = 0; first < t.out; first += kAtOnce) {
    const int64_t last = std::min(t.out, first + kAtOnce);
    const auto zeros = zeros_of(checkpoint, t, less_one, first, last);
    for (int64_t i = 0; i < (last - first) * n_groups(t); ++i)
      found.set(zeros[static_cast<size_t>(i)]);
  }
  const auto holds_only = [&](int zero) {
    return found.count() == 1 && found.test(static_cast<size_t>(zero));
  };
  if (holds_only(middle)) return;
  const int other = less_one ? middle + 1 : middle - 1;
  const bool swapped = holds_only(other);
  found.reset(static_cast<size_t>(middle));
  int wrong = 0;
  while (!found.test(static_cast<size_t>(wrong))) ++wrong;
  throw input_error(checkpoint.where(),
                    "tensor {}: config.json says sym, so that zeros are {}, but found {}{}",
                    io::quote(t.zeros.name), middle, wrong,
                    swapped ? fmt::format("; these are the zeros of checkpoint_format '{}'",
                                          less_one ? "gptq_v2" : "gptq")
                            : "")
      .hint(swapped ? "set checkpoint_format in quantization_config to the format of the tensors"
                    : kSameFolder);
}

/// The type of scales in memory: that of the file, or a narrower one that holds all. Scales
/// of fp8 stay f32, which all products take.
ScaleType scale_type(Code code, const CodedPart& part, std::span<const float> scales) {
  if (code == Code::fp8) return ScaleType::f32;
  const auto all = [&](const auto& fits) { return std::ranges::all_of(scales, fits); };
  if (part.dtype == "F16") return ScaleType::f16;
  if (all([](float s) { return to_float(to_bf16(s)) == s; })) return ScaleType::bf16;
  if (all([](float s) { return to_float(to_f16(s)) == s; })) return ScaleType::f16;
  return ScaleType::f32;
}

/// Reads what decides on the format in memory.
void settle(const Checkpoint& checkpoint, CodedTensor& t, bool less_one) {
  const std::vector<float> scales =
      floats_of(all_of<std::byte>(checkpoint, t.scales.bytes), t.scales);
  check_scales(checkpoint, t, scales);
  const bool symmetric_gptq = t.method == QuantMethod::gptq && t.scheme.symmetric;
  if (symmetric_gptq) check_symmetric(checkpoint, t, less_one);
  read_order(checkpoint, t);
  const int64_t group = group_size(t);
  if (!t.group_of.empty() || (group != t.in && !is_group(group))) return;
  const Code code = t.scheme.codes == Codes::fp8 ? Code::fp8
                    : t.scheme.bits == 4         ? Code::i4
                                                 : Code::i8;
  const bool centred = t.zeros.name.empty() || symmetric_gptq;
  t.format = {code, static_cast<int16_t>(group == t.in ? 0 : group),
              scale_type(code, t.scales, scales), centred ? Zero::none : Zero::integer};
}

}  // namespace

/// Unpacked outputs [first, last) of a matrix.
struct CodedTensors::Strip {
  const CodedTensor* of;
  int64_t first = 0, last = 0, stride = 0;
  std::vector<uint8_t> codes = {};  // [outputs, stride], unsigned or E4M3
  std::vector<uint8_t> zeros = {};  // [outputs, groups], unsigned; empty: the middle
  std::vector<float> scales = {};   // [outputs that share them, groups]

  float middle() const { return static_cast<float>(1 << (of->scheme.bits - 1)); }
  const uint8_t* codes_at(int64_t row) const {
    return &codes[static_cast<size_t>((row - first) * stride)];
  }
  const float* scales_at(int64_t row) const {
    const int64_t shared = of->scheme.outputs, at = shared == 0 ? 0 : row / shared - first / shared;
    return &scales[static_cast<size_t>(at * n_groups(*of))];
  }
  const uint8_t* zeros_at(int64_t row) const {
    return zeros.empty() ? nullptr : &zeros[static_cast<size_t>((row - first) * n_groups(*of))];
  }
  /// The first NaN among the codes of a row; inputs if there is none.
  int64_t nan_at(int64_t row) const {
    if (of->scheme.codes != Codes::fp8) return of->in;
    const uint8_t* const code = codes_at(row);
    return std::find_if(code, code + of->in, [](uint8_t c) { return (c & 0x7f) == 0x7f; }) - code;
  }
  void values(int64_t row, float* out) const;
  void row_of_codes(int64_t row, std::byte* out) const;
};

void CodedTensors::Strip::values(int64_t row, float* out) const {
  const uint8_t* const code = codes_at(row);
  const float* const scale = scales_at(row);
  const uint8_t* const zero = zeros_at(row);
  const int64_t in = of->in, group = group_size(*of);
  if (of->scheme.codes == Codes::fp8) {
    const auto& table = fp8_numbers();
    for (int64_t k = 0; k < in; ++k) out[k] = table[code[k]] * scale[k / group];
    return;
  }
  const auto value = [&](int64_t k, int64_t g) {
    const float z = zero == nullptr ? middle() : static_cast<float>(zero[g]);
    return scale[g] * (static_cast<float>(code[k]) - z);
  };
  if (!of->group_of.empty()) {
    for (int64_t k = 0; k < in; ++k) out[k] = value(k, of->group_of[static_cast<size_t>(k)]);
    return;
  }
  for (int64_t g = 0, k = 0; k < in; ++g)
    for (const int64_t end = std::min(in, k + group); k < end; ++k) out[k] = value(k, g);
}

void CodedTensors::Strip::row_of_codes(int64_t row, std::byte* out) const {
  constexpr uint8_t kSignBit = 0x80;
  const WeightFormat& f = of->format;
  const int64_t in = of->in, group = group_size(*of);
  const bool halves = f.code == Code::i4;
  const int64_t padded = halves ? (group + 1) / 2 * 2 : group;
  const uint8_t flip = f.code == Code::i8 ? kSignBit : 0;
  const auto put = [&](const auto& value) {
    std::memcpy(out, &value, sizeof value);
    out += sizeof value;
  };
  std::vector<uint8_t> tail;
  for (int64_t g = 0; g < n_groups(*of); ++g) {
    const uint8_t* code = codes_at(row) + g * group;
    const auto zero = static_cast<uint8_t>(f.code == Code::fp8 ? 0
                                           : zeros.empty()     ? static_cast<int>(middle())
                                                               : zeros_at(row)[g]);
    if (const int64_t n = std::min(group, in - g * group); n < padded) {
      tail.assign(static_cast<size_t>(padded), zero);
      std::copy_n(code, n, tail.begin());
      code = tail.data();
    }
    if (halves)
      for (int64_t i = 0; i < padded; i += 2)
        *out++ = static_cast<std::byte>(code[i] | code[i + 1] << 4);
    else
      for (int64_t i = 0; i < padded; ++i) *out++ = static_cast<std::byte>(code[i] ^ flip);
    const float scale = scales_at(row)[g];
    if (f.scale == ScaleType::f32) put(scale);
    if (f.scale == ScaleType::bf16) put(to_bf16(scale));
    if (f.scale == ScaleType::f16) put(to_f16(scale));
    if (f.zero == Zero::integer) put(static_cast<uint8_t>(zero ^ flip));
  }
}

std::string coded_problem(const Checkpoint& checkpoint, const std::string& name,
                          const io::Shape& shape) {
  const Quantization* q = checkpoint.quantization();
  const std::string module = module_of(name);
  const io::TensorEntry* entry = checkpoint.find(name);
  const bool numbers = entry != nullptr && is_weight_type(entry->dtype);
  const bool embeds = module.ends_with("embed_tokens");
  const QuantScheme* scheme =
      q == nullptr || embeds ? nullptr : q->scheme_of(module, stored_name(checkpoint, module));
  if (numbers) {
    if (entry->shape != shape)
      return fmt::format("{}: expected shape {}, found {}", name, io::shape_text(shape),
                         io::shape_text(entry->shape));
    return scheme != nullptr && q->method == QuantMethod::compressed_tensors
               ? fmt::format("{}: found {}, but quantization_config lists it as quantized", name,
                             entry->dtype)
               : "";
  }
  const std::string others = methods_of(checkpoint, module, nullptr);
  if (embeds && q != nullptr && !others.empty())
    return fmt::format("{}: quantized by {}, but quantized embeddings are not supported", module,
                       others);
  if (scheme == nullptr && !others.empty())
    return q == nullptr
               ? fmt::format("{}: quantized by {}, but config.json has no quantization_config",
                             module, others)
               : fmt::format("{}: quantized by {}, but quantization_config exempts it", module,
                             others);
  if (scheme == nullptr)
    return entry == nullptr
               ? fmt::format("{}: missing, expected shape {}", name, io::shape_text(shape))
               : fmt::format("{}: expected BF16, F16 or F32, found {}", name, entry->dtype);
  CodedTensor t{
      .module = module, .method = q->method, .scheme = *scheme, .out = shape[0], .in = shape[1]};
  return find_parts(checkpoint, t);
}

bool has_codes_of(const Checkpoint& checkpoint, const std::string& name) {
  return !methods_of(checkpoint, module_of(name), nullptr).empty();
}

CodedTensors::CodedTensors(const ModelConfig& config, const Checkpoint& checkpoint)
    : checkpoint_(&checkpoint) {
  const Quantization* q = checkpoint.quantization();
  if (q == nullptr) return;
  activations_ = q->activations;
  for (const MatrixId& id : all_matrices(config)) {
    const auto [name, first, shape] = checkpoint.part(id, config);
    if (shape.size() != 2 || first > 0) continue;
    if (const io::TensorEntry* entry = checkpoint.find(name);
        entry != nullptr && is_weight_type(entry->dtype)) {
      ++n_plain_;
      continue;
    }
    const std::string module = module_of(name);
    CodedTensor t{.module = module,
                  .method = q->method,
                  .scheme = *q->scheme_of(module, stored_name(checkpoint, module)),
                  .out = shape[0],
                  .in = shape[1]};
    const std::string problem = find_parts(checkpoint, t);
    TANDEM_CHECK(problem.empty(), "{} was not checked: {}", name, problem);
    settle(checkpoint, t, q->zeros_less_one);
    tensors_.emplace(name, std::move(t));
  }
}

const CodedTensor* CodedTensors::find(std::string_view tensor) const {
  const auto at = tensors_.find(tensor);
  return at == tensors_.end() ? nullptr : &at->second;
}

std::shared_ptr<const CodedTensors::Strip> CodedTensors::strip(const CodedTensor& t, int64_t begin,
                                                               int64_t end) const {
  const Layout& l = layout_of(t.method, t.scheme.codes);
  const int64_t weights = l.by_output ? kRowStripWeights : kStripWeights;
  const int64_t most = std::max<int64_t>(1, weights / t.in / kOutputsAtOnce) * kOutputsAtOnce;
  Strip s{.of = &t};
  if (l.by_output) {
    s.last = std::min(end, begin + most);
  } else {
    // Columns are read in wide strips, once.
    const std::scoped_lock lock(mutex_);
    if (last_ && last_->of == &t && last_->first <= begin && begin < last_->last) return last_;
    s.last = std::min(t.out, begin + most);
  }
  const int64_t unit = per_word(t), shared = t.scheme.outputs;
  s.first = begin / unit * unit;
  // Rows that are a power of two apart would share a few lines of the cache.
  constexpr int64_t kCacheLine = 64;
  s.stride = divide_up(t.in, unit) * unit + kCacheLine;
  s.codes = unpacked(*checkpoint_, t, t.codes, l.packs_outputs, s.first, s.last, s.stride);
  const bool less_one = checkpoint_->quantization()->zeros_less_one;
  if (!t.zeros.name.empty()) s.zeros = zeros_of(*checkpoint_, t, less_one, s.first, s.last);
  const int64_t first = shared == 0 ? 0 : s.first / shared,
                last = shared == 0 ? 1 : divide_up(s.last, shared), groups = n_groups(t);
  const std::vector<float> scales = floats_of(fetch(*checkpoint_, t.scales, first, last), t.scales);
  s.scales = scales;
  if (!t.scales.by_output)
    for (int64_t o = 0; o < last - first; ++o)
      for (int64_t g = 0; g < groups; ++g)
        s.scales[static_cast<size_t>(o * groups + g)] =
            scales[static_cast<size_t>(g * (last - first) + o)];
  const auto made = std::make_shared<const Strip>(std::move(s));
  if (!l.by_output) {
    const std::scoped_lock lock(mutex_);
    last_ = made;
  }
  return made;
}

void CodedTensors::rows(const CodedTensor& t, int64_t begin, int64_t end, const WeightFormat& to,
                        void* out) const {
  const size_t bytes = row_bytes(to, t.in);
  constexpr int64_t kLeast = int64_t{1} << 16;  // weights that a thread converts
  const auto least = static_cast<int>(std::max<int64_t>(1, kLeast / t.in));
  const auto convert = [&](const Strip& s, int64_t first, int64_t last) {
    std::vector<float> values(static_cast<size_t>(to == DType::bf16 ? t.in : 0));
    for (int64_t row = first; row < last; ++row) {
      std::byte* const here =
          static_cast<std::byte*>(out) + static_cast<size_t>(row - begin) * bytes;
      if (const int64_t bad = s.nan_at(row); bad < t.in)
        throw damaged(*checkpoint_, fmt::format("tensor {}: weight {} of row {} is NaN",
                                                io::quote(t.codes.name), bad, row));
      if (is_coded(to))
        s.row_of_codes(row, here);
      else if (to == DType::f32)
        s.values(row, reinterpret_cast<float*>(here));
      else
        s.values(row, values.data());
      if (to == DType::bf16) ops::convert(here, DType::bf16, values.data(), DType::f32, t.in);
    }
  };
  const auto convert_all = [&](int64_t first, int64_t last) {
    while (first < last) {
      const std::shared_ptr<const Strip> s = strip(t, first, last);
      const int64_t from = std::exchange(first, std::min(last, s->last));
      parallel_ranges(static_cast<int>(first - from), least,
                      [&](int i, int j) { convert(*s, from + i, from + j); });
    }
  };
  // Rows are unpacked by the thread that converts them, columns by all threads together.
  if (!layout_of(t.method, t.scheme.codes).by_output) return convert_all(begin, end);
  parallel_ranges(static_cast<int>(end - begin), least,
                  [&](int i, int j) { convert_all(begin + i, begin + j); });
}

std::vector<std::string> CodedTensors::notes() const {
  if (tensors_.empty()) return {};
  std::map<std::string, int> counts;
  int ordered = 0, odd = 0;
  for (const auto& [name, t] : tensors_) {
    const QuantScheme& s = t.scheme;
    const std::string codes = s.codes == Codes::fp8 ? "fp8" : fmt::format("int{}", s.bits);
    std::string what =
        t.method == QuantMethod::fp8 ? codes : fmt::format("{} {}", method_name(t.method), codes);
    if (s.inputs > 0)
      what += s.outputs == 1 ? fmt::format(" g{}", s.inputs)
                             : fmt::format(" in blocks of {}x{}", s.outputs, s.inputs);
    ++counts[what];
    ordered += t.group_of.empty() ? 0 : 1;
    odd += t.group_of.empty() && !is_coded(t.format) ? 1 : 0;
  }
  std::string text;
  for (const auto& [name, n] : counts)
    text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", n, name);
  if (n_plain_ > 0) text += fmt::format(", {} not quantized", n_plain_);
  std::vector<std::string> all{"file     matrices: " + text};
  const auto add = [&](int n, std::string_view why) {
    if (n > 0) all.push_back(fmt::format("file     decoded in memory: {} ({})", n, why));
  };
  add(ordered, "act-order: the inputs of a group are not neighbours");
  add(odd, "no product takes blocks of this size");
  if (!activations_.empty())
    all.push_back(fmt::format(
        "file     config.json also quantizes activations ({}): model.activations decides",
        activations_));
  return all;
}

}  // namespace tandem::model
