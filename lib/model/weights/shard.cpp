#include "model/weights/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace tandem::model {
namespace {

constexpr int kVocabularyBlock = 16;
constexpr int kCodesOfByte = 2;  // at most
/// Numbers of a matrix whose columns are divided that are read at once: small compared with any
/// plan.
constexpr int64_t kPieceNumbers = int64_t{1} << 20;

int divide_up(int n, int by) { return (n + by - 1) / by; }

/// Part `rank` of n blocks; the first ranks have one more where they do not divide.
Shard::Part part_of(int n, int rank, int n_ranks) {
  const int each = n / n_ranks, more = n % n_ranks;
  return {rank * each + std::min(rank, more), each + (rank < more ? 1 : 0)};
}

/// Whether the query heads of every rank read equally many of each of its KV heads.
bool has_even_groups(const ModelConfig& c, int n_ranks) {
  const int each = c.n_heads / n_ranks, group = c.group_size();
  for (int r = 0; r < n_ranks && each % group != 0 && group % each != 0; ++r) {
    const int first = r * each, last = first + each - 1;
    const int n_kv = last / group - first / group + 1;
    if (each % n_kv != 0) return false;
    for (int h = first; h <= last; ++h)
      if (h / group - first / group != (h - first) / (each / n_kv)) return false;
  }
  return true;
}

Shard::Part vocabulary_of(const ModelConfig& c, int rank, int n_ranks) {
  const int n = divide_up(divide_up(c.vocab_size, n_ranks), kVocabularyBlock) * kVocabularyBlock;
  return {rank * n, n};
}

class ShardSource final : public WeightSource {
 public:
  ShardSource(const ModelConfig& whole, const Shard& shard, std::unique_ptr<WeightSource> source)
      : whole_(whole), shard_(shard), owned_(std::move(source)), source_(owned_.get()) {
    if (const WeightSource& before = source_->base(); &before != source_)
      base_.reset(new ShardSource(whole, shard, before));
    for (const MatrixId id : all_matrices(whole))
      if (const WeightSource* all = source_->unquantized(id).source; all != nullptr && !numbers_)
        numbers_.reset(new ShardSource(whole, shard, *all));
  }

  WeightFormat native(MatrixId id) const override { return source_->native(id); }

  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    const Shard::Part own = own_features(id.role, whole_, shard_);
    if (info(id.role).cut == Cut::columns) return columns(id, own, begin, end, to, out);
    const io::Shape shape = shape_of(id.role, whole_);
    const int64_t lo = own.first + begin, hi = own.first + end;
    const int64_t last = std::clamp(shape[0], lo, hi);  // the vocabulary's last part is padded
    if (lo < last) source_->rows(id, lo, last, to, out);
    std::memset(static_cast<std::byte*>(out) + matrix_bytes(to, last - lo, shape[1]), 0,
                matrix_bytes(to, hi - last, shape[1]));
  }

  bool rows_on_device(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* device,
                      Stream stream) const override {
    const Shard::Part own = own_features(id.role, whole_, shard_);
    return info(id.role).cut != Cut::columns && own.first + end <= shape_of(id.role, whole_)[0] &&
           source_->rows_on_device(id, own.first + begin, own.first + end, to, device, stream);
  }

  Unquantized unquantized(MatrixId id) const override {
    const Unquantized all = source_->unquantized(id);
    const WeightFormat format = native(id);
    // A scale of an entire row is that of all ranks.
    const bool is_cut = info(id.role).cut == Cut::columns;
    if (all.source == nullptr || (is_cut && (format.group == 0 || cuts_unit(id, format))))
      return {};
    return {numbers_.get(), all.search};
  }

  std::vector<float> vector(MatrixId id) const override {
    std::vector<float> all = source_->vector(id);
    if (info(id.role).cut == Cut::first_rank && shard_.divides_layers() && shard_.rank > 0)
      std::ranges::fill(all, 0.0f);
    if (info(id.role).cut != Cut::rows) return all;
    const Shard::Part own = own_features(id.role, whole_, shard_);
    return {all.begin() + own.first, all.begin() + own.first + own.n};
  }

  void embed(std::span<const int32_t> ids, float* out) const override { source_->embed(ids, out); }
  const WeightSource& base() const override { return base_ ? *base_ : *this; }

 private:
  ShardSource(const ModelConfig& whole, const Shard& shard, const WeightSource& source)
      : whole_(whole), shard_(shard), source_(&source) {}

  /// A scale and a zero of an entire row are those of each of its parts.
  static bool is_one_group(const WeightFormat& format) {
    return format.group == 0 && is_coded(format);
  }
  int64_t unit_of(MatrixId id, const WeightFormat& format) const {
    return is_one_group(format) ? kCodesOfByte : cut_unit(format, shape_of(id.role, whole_)[1]);
  }
  /// True if the rank's columns begin or end inside a group.
  bool cuts_unit(MatrixId id, const WeightFormat& format) const {
    const Shard::Part own = own_features(id.role, whole_, shard_);
    const int64_t unit = unit_of(id, format), end = own.first + own.n;
    return own.first % unit != 0 || (end % unit != 0 && end != shape_of(id.role, whole_)[1]);
  }

  /// errors   kind recipe: the rank's columns begin or end inside a group
  void columns(MatrixId id, const Shard::Part& own, int64_t begin, int64_t end, WeightFormat format,
               void* out) const {
    const int64_t in = shape_of(id.role, whole_)[1];
    const int64_t most = std::max<int64_t>(1, kPieceNumbers / in);
    if (cuts_unit(id, format))
      throw recipe_error("run.world_size", "is {}, which cuts {} ({}) inside a {} of {} inputs",
                         shard_.n_ranks, canonical_name(id), format_name(format),
                         format.scale == ScaleType::two_level ? "block" : "group",
                         unit_of(id, format))
          .hint("use fewer ranks, or set model.weights to bf16 or f32, as model.compute");
    const size_t scale = is_one_group(format) ? scale_bytes(format) : 0,
                 row = row_bytes(format, in),
                 skipped = own.first == 0 ? 0 : row_bytes(format, own.first) - scale,
                 bytes = row_bytes(format, own.n) - scale;
    std::vector<std::byte> piece(static_cast<size_t>(std::min(most, end - begin)) * row);
    auto* to = static_cast<std::byte*>(out);
    for (int64_t first = begin; first < end;) {
      const int64_t last = std::min(end, first + most);
      source_->rows(id, first, last, format, piece.data());
      for (const std::byte* from = piece.data(); first < last; ++first, from += row) {
        to = std::copy_n(from + skipped, bytes, to);
        to = std::copy_n(from + row - scale, scale, to);
      }
    }
  }

  ModelConfig whole_;
  Shard shard_;
  std::unique_ptr<WeightSource> owned_;  // null of a base, which its source owns
  const WeightSource* source_;
  std::unique_ptr<ShardSource> base_;     // of a source with adapters merged into it
  std::unique_ptr<ShardSource> numbers_;  // if the source quantizes them
};

}  // namespace

Shard::Part own_features(Role role, const ModelConfig& whole, const Shard& shard) {
  const int unit = unit_features(role, whole);
  const std::array by_unit = {Shard::Part{}, shard.heads, shard.kv_heads, shard.channels,
                              shard.vocabulary};
  const Shard::Part part = by_unit[static_cast<size_t>(info(role).unit)];
  return {part.first * unit, part.n * unit};
}

int channel_block(const ModelConfig& c, const WeightSource& source) {
  constexpr int kInputs = 32;  // share a scale once they are rounded to int8
  int block = kChannelBlock;
  for (int layer = 0; layer < c.n_layers; ++layer)
    for (const WeightSource* s : {&source, &source.base()}) {
      const WeightFormat format = s->native({Role::down, layer});
      if (is_coded(format))
        block = std::lcm(block, format.group > 0 ? static_cast<int>(cut_unit(format, 1)) : kInputs);
    }
  return block;
}

bool divides(const ModelConfig& c, int n_ranks, int block) {
  return n_ranks >= 1 && c.n_heads % n_ranks == 0 && has_even_groups(c, n_ranks) &&
         divide_up(c.ffn_dim, block) >= n_ranks;
}

Shard shard_of(const ModelConfig& c, int rank, int n_ranks, int block) {
  TANDEM_CHECK(rank >= 0 && rank < n_ranks, "rank {} is out of range for {} ranks", rank, n_ranks);
  if (!divides(c, n_ranks, block)) {
    std::vector<int> numbers;
    for (int n = 1; n <= c.n_heads; ++n)
      if (divides(c, n, block)) numbers.push_back(n);
    const std::string what =
        divides(c, n_ranks, 1)
            ? fmt::format("{} FFN neurons in blocks of {}", c.ffn_dim, block)
            : fmt::format("{} query heads and {} KV heads evenly", c.n_heads, c.n_kv_heads);
    throw recipe_error("run.world_size", "is {}, which does not divide {}", n_ranks, what)
        .hint(fmt::format("{} can be sharded over {} ranks", c.name, fmt::join(numbers, ", ")));
  }
  Shard s{.rank = rank, .n_ranks = n_ranks, .channel_block = block};
  s.heads = part_of(c.n_heads, rank, n_ranks);
  s.kv_heads.first = s.heads.first / c.group_size();
  s.kv_heads.n = (s.heads.first + s.heads.n - 1) / c.group_size() - s.kv_heads.first + 1;
  const Shard::Part blocks = part_of(divide_up(c.ffn_dim, block), rank, n_ranks);
  s.channels.first = blocks.first * block;
  s.channels.n = std::min(c.ffn_dim, (blocks.first + blocks.n) * block) - s.channels.first;
  s.vocabulary = vocabulary_of(c, rank, n_ranks);
  return s;
}

Shard draft_shard_of(const ModelConfig& c, int rank, int n_ranks, int block) {
  if (divides(c, n_ranks, block)) return shard_of(c, rank, n_ranks, block);
  return {.rank = rank,
          .n_ranks = n_ranks,
          .heads = {0, c.n_heads},
          .kv_heads = {0, c.n_kv_heads},
          .channels = {0, c.ffn_dim},
          .vocabulary = vocabulary_of(c, rank, n_ranks),
          .whole_layers = true};
}

ModelConfig config_of(const ModelConfig& whole, const Shard& s) {
  if (s.whole()) return whole;
  ModelConfig c = whole;
  c.n_heads = s.heads.n;
  c.n_kv_heads = s.kv_heads.n;
  c.ffn_dim = s.channels.n;
  c.layers_divided = s.divides_layers();
  if (c.layers_divided) {
    c.all_heads = whole.n_heads;
    c.all_kv_heads = whole.n_kv_heads;
    c.repeats_kv_head = s.heads.first % whole.group_size() != 0;
  }
  c.vocab_first = s.vocabulary.first;
  c.vocab_rows = s.vocabulary.n;
  return c;
}

std::unique_ptr<WeightSource> shard_source(const ModelConfig& whole, const Shard& shard,
                                           std::unique_ptr<WeightSource> source) {
  if (shard.whole()) return source;
  return std::make_unique<ShardSource>(whole, shard, std::move(source));
}

}  // namespace tandem::model
