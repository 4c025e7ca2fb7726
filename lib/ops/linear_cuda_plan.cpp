// The memory of dense layers on a GPU: arithmetic alone, compiled in every build, so that a plan
// needs no GPU.
#include <algorithm>

#include "base/divide_up.h"
#include "base/two_level.h"
#include "ops/linear_device.h"
#include "ops/operation.h"

namespace tandem::ops::linear_cuda {
namespace {

// Of a staging buffer: far beyond what a copy costs to start (some 10 us, 0.5 MiB at PCIe speed).
constexpr size_t kSlotBytes = size_t{32} << 20;
constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Lays out rows of codes, or of numbers, from part.at on; returns where they end.
size_t place(Part& part, int64_t rows, const PackedWeights::Spec& s) {
  if (!is_coded(part.stored)) return part.at + matrix_bytes(part.stored, rows, s.in);
  CodeTiles& t = part.tiles;
  t.out = as_int(rows);
  t.in = as_int(s.in);
  t.group = part.stored.group;
  const bool two_level = part.stored.scale == ScaleType::two_level;
  const bool is_wide = part.stored.code == Code::i5 || part.stored.code == Code::i6;
  t.code = is_wide ? Code::i8 : part.stored.code;
  t.scale = two_level ? ScaleType::f16 : part.stored.scale;
  t.zero = part.stored.zero;
  t.paired = s.gated && s.stacked.empty();
  t.by_input = s.by_input;
  return part.at + static_cast<size_t>(t.down() * t.row_bytes());
}

/// Bytes of a row of tiles, as rows and as tiles.
size_t tile_bytes(const Part& part, int64_t in) {
  return matrix_bytes(part.stored, part.tiles.outputs_of_tile(), in) +
         static_cast<size_t>(part.tiles.row_bytes());
}

}  // namespace

Places::Places(const PackedWeights::Spec& s) {
  for (const auto& [rows, stored] : s.stacks()) {
    PackedWeights::Spec named = s;
    named.stored = stored;
    check_taken(named, takes_any(stored, s.input) || takes_codes(stored, s.input));
    Part part{.first = parts.empty() ? 0 : parts.back().first + parts.back().tiles.out,
              .stored = stored,
              .at = aligned(end)};
    part.tiles.out = as_int(rows);
    end = place(part, rows, s);
    parts.push_back(part);
  }
  const auto out = static_cast<size_t>(s.out);
  bias = aligned(end);
  rounded_bias = bias + (s.bias ? aligned(out * sizeof(float)) : 0);
  end = rounded_bias + (s.bias ? aligned(out * sizeof(bf16)) : 0);
}

bool takes_any(const WeightFormat& stored, DType input) {
  return takes_numbers<DType::bf16>(stored, input) || takes_numbers<DType::f32>(stored, input);
}

bool takes_codes(const WeightFormat& stored, DType input) {
  if (input != DType::bf16) return false;
  const int group = stored.group;
  const bool small = group == 16 || group == 32 || group == 64;
  if (stored.scale == ScaleType::two_level)
    return std::ranges::count(kTwoLevelBlocks,
                              TwoLevelBlock{stored.code, stored.zero, stored.group}) == 1;
  if (stored.code == Code::fp8)
    return stored.zero == Zero::none && stored.scale == ScaleType::f32 && group % 128 == 0;
  return is_coded(stored) && stored.scale != ScaleType::f32 && (group % 128 == 0 || small);
}

RoundedBytes::RoundedBytes(const PackedWeights::Spec& s, int64_t rows)
    : codes(aligned(static_cast<size_t>(rows * s.in))),
      x_scales(aligned(static_cast<size_t>(rows * divide_up(s.in, 128)) * sizeof(float))),
      w_scales(aligned(static_cast<size_t>(s.out * divide_up(s.in, 128)) * sizeof(float))) {}

bool can_round(const Part& part) {
  const CodeTiles& t = part.tiles;
  const int unit = t.group == 0 ? 16 : t.group;
  return part.stored.code == Code::fp8 && !t.by_input && (t.group == 0 || t.group == 128) &&
         t.in % unit == 0 && t.out % (t.paired ? 32 : 16) == 0 && part.first % 16 == 0;
}

size_t bytes(const PackedWeights::Spec& spec) { return Places(spec).end; }

size_t staging_bytes(const PackedWeights::Spec& spec) {
  size_t least = 0, all = 0;
  for (const Part& part : Places(spec).parts) {
    const bool coded = is_coded(part.stored);
    const size_t unit =
        coded ? tile_bytes(part, spec.in) : row_bytes(part.stored, spec.row_numbers());
    const auto n = static_cast<size_t>(coded ? part.tiles.down() : part.tiles.out);
    // The GPU may quantize numbers as well.
    least = std::max({least, unit, coded ? matrix_bytes(DType::f32, kTileOutputs, spec.in) : 0});
    all = std::max(all, n * unit);
  }
  return kStagingSlots * aligned(std::max(least, std::min(all, kSlotBytes)));
}

size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows) {
  if (!spec.has_codes()) return kWorkspaceBytes;
  const int more = spec.by_input ? kStripOutputs : kTileOutputs;
  const size_t all = matrix_bytes(DType::bf16, spec.out + more, spec.in);
  const size_t panel = std::min(aligned(all), spec.trainable ? kTrainedPanelBytes : kPanelBytes);
  const size_t columns = spec.trainable ? matrix_bytes(DType::bf16, spec.out, kTileInputs) : 0;
  const size_t rounded = spec.fp8_inputs ? RoundedBytes(spec, max_rows).all() : 0;
  return kWorkspaceBytes + rounded + std::max(panel, aligned(columns));
}

}  // namespace tandem::ops::linear_cuda
