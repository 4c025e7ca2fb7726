#include "train/data/dataset.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "base/parallel.h"
#include "base/sha256.h"

namespace tandem::train {
namespace {

constexpr size_t kWave = 4096;  // records between two questions for progress
constexpr int kChunk = 64;      // records that a thread takes at once

/// A text that begins with the tokenizer's prefix, in pieces that each do. All tokens after the
/// prefix are supervised.
std::vector<Sample> pieces_of(std::span<const int32_t> ids, const std::vector<int32_t>& prefix,
                              size_t max_tokens) {
  const size_t room = max_tokens - std::min(prefix.size(), max_tokens - 1);
  std::vector<Sample> pieces;
  for (ids = ids.subspan(prefix.size()); !ids.empty();
       ids = ids.subspan(std::min(room, ids.size()))) {
    Sample piece{.ids = prefix, .supervised = {}};
    const auto part = ids.first(std::min(room, ids.size()));
    piece.ids.insert(piece.ids.end(), part.begin(), part.end());
    const TokenSpan span{static_cast<int32_t>(std::max<size_t>(prefix.size(), 1)),
                         static_cast<int32_t>(piece.ids.size())};
    if (span.begin >= span.end) continue;  // one token without any in front
    piece.supervised.push_back(span);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace

/// What one record gave.
struct Dataset::Encoded {
  std::vector<Sample> samples;
  bool truncated = false, too_long = false, unsupervised = false, answer_cut = false,
       endless = false, doubled = false;
};

Dataset::Encoded Dataset::encode(const Record& record, const SampleEncoder& encoder,
                                 const BatchSettings& batches) {
  const auto max_tokens = static_cast<size_t>(batches.max_tokens.value);
  Sample sample = encoder.encode(record);
  Encoded encoded;
  if (std::holds_alternative<Document>(record.content)) {
    encoded.samples = pieces_of(sample.ids, encoder.prefix(), max_tokens);
    encoded.unsupervised = encoded.samples.empty();
    return encoded;
  }
  sample.drop_tail();
  encoded.unsupervised = sample.supervised.empty();
  if (encoded.unsupervised) return encoded;
  if (sample.ids.size() > max_tokens) {
    if (batches.overlong == Overlong::error)
      throw input_error(record.where, "has {} tokens, but train.max_tokens is {}",
                        sample.ids.size(), max_tokens)
          .hint("raise train.max_tokens, or set train.overlong to truncate_right or drop");
    encoded.too_long = batches.overlong == Overlong::drop;
    if (encoded.too_long) return encoded;
    sample.truncate(max_tokens);
    sample.drop_tail();
    encoded.answer_cut = sample.supervised.empty();
    if (encoded.answer_cut) return encoded;
    encoded.truncated = true;
  }
  encoded.doubled = encoder.begins_twice(sample.ids);
  encoded.endless = !encoded.truncated && !encoder.is_control(sample.ids.back());
  encoded.samples.push_back(std::move(sample));
  return encoded;
}

void Dataset::add(const Encoded& encoded, int32_t record) {
  counts_.truncated += encoded.truncated;
  counts_.too_long += encoded.too_long;
  counts_.unsupervised += encoded.unsupervised;
  counts_.answer_cut += encoded.answer_cut;
  counts_.endless += encoded.endless;
  counts_.doubled += encoded.doubled;
  for (const Sample& sample : encoded.samples) {
    ids_.insert(ids_.end(), sample.ids.begin(), sample.ids.end());
    spans_.insert(spans_.end(), sample.supervised.begin(), sample.supervised.end());
    id_begin_.push_back(ids_.size());
    span_begin_.push_back(spans_.size());
    records_.push_back(record);
    const auto rows = static_cast<int32_t>(sample.ids.size()) - 1;
    ++counts_.samples;
    counts_.rows += rows;
    counts_.supervised += n_tokens(sample.supervised);
    longest_rows_ = std::max(longest_rows_, rows);
  }
}

Dataset::Dataset(std::span<const Record> records, const SampleEncoder& encoder,
                 const BatchSettings& batches, const RecordProgress& progress) {
  counts_.records = static_cast<int64_t>(records.size());
  for (const Record& record : records) where_.push_back(record.where);
  for (size_t done = 0; done < records.size();) {
    const auto wave = records.subspan(done, std::min(kWave, records.size() - done));
    const int n_chunks = (static_cast<int>(wave.size()) + kChunk - 1) / kChunk;
    std::vector<Encoded> encoded(wave.size());
    std::vector<std::exception_ptr> failed(static_cast<size_t>(n_chunks));
    parallel_for(n_chunks, [&](int chunk) {
      const auto begin = static_cast<size_t>(chunk) * kChunk;
      try {
        for (size_t i = begin; i < std::min(begin + kChunk, wave.size()); ++i)
          encoded[i] = encode(wave[i], encoder, batches);
      } catch (...) {
        failed[static_cast<size_t>(chunk)] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : failed)
      if (error) std::rethrow_exception(error);  // the first in the file, on any number of threads
    for (size_t i = 0; i < wave.size(); ++i) add(encoded[i], static_cast<int32_t>(done + i));
    done += wave.size();
    if (progress && !progress(static_cast<int64_t>(done), counts_.records))
      throw Error(ErrorKind::interrupted, "", "interrupted");
  }
}

std::string Dataset::fingerprint() const {
  const auto text_of = [](const auto& list) {
    return std::string_view(reinterpret_cast<const char*>(list.data()),
                            list.size() * sizeof(list[0]));
  };
  std::string parts;
  for (const std::string_view part :
       {text_of(ids_), text_of(spans_), text_of(id_begin_), text_of(span_begin_)})
    parts += sha256_hex(part);
  return sha256_hex(parts);
}

SampleView Dataset::operator[](int32_t i) const {
  const auto at = static_cast<size_t>(i);
  return {.ids = std::span(ids_).subspan(id_begin_[at], id_begin_[at + 1] - id_begin_[at]),
          .supervised =
              std::span(spans_).subspan(span_begin_[at], span_begin_[at + 1] - span_begin_[at])};
}

}  // namespace tandem::train
