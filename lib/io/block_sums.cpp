#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/crc32.h"
#include "base/error.h"
#include "base/parallel.h"
#include "io/safetensors.h"

namespace tandem::io {
namespace {

constexpr size_t kSumDigits = 8;  // of a checksum

size_t n_blocks_of(size_t bytes, size_t block) { return bytes / block + (bytes % block != 0); }

/// Takes a number of this base that fills the text.
template <class T>
bool parse_whole(std::string_view text, int base, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

BlockSums::BlockSums(size_t block, std::span<const size_t> tensor_bytes) : block_bytes(block) {
  for (const size_t bytes : tensor_bytes) {
    first.push_back(crcs.size());
    crcs.resize(crcs.size() + n_blocks_of(bytes, block));
  }
  first.push_back(crcs.size());
}

void BlockSums::add(size_t tensor, size_t begin, std::span<const std::byte> bytes) {
  constexpr size_t kAPiece = size_t{64} << 10;  // that is worth another thread
  const size_t end = begin + bytes.size(), from = begin / block_bytes;
  const size_t n_blocks = n_blocks_of(end, block_bytes) - from;
  parallel_ranges(static_cast<int>(n_blocks), static_cast<int>(n_blocks_of(kAPiece, block_bytes)),
                  [&](int b, int e) {
                    for (size_t i = from + static_cast<size_t>(b);
                         i < from + static_cast<size_t>(e); ++i) {
                      const size_t low = std::max(begin, i * block_bytes);
                      const size_t high = std::min(end, (i + 1) * block_bytes);
                      uint32_t& crc = crcs[first[tensor] + i];
                      crc = crc32(bytes.subspan(low - begin, high - low), crc);
                    }
                  });
}

std::string BlockSums::text() const {
  std::string text = fmt::format("{}:", block_bytes);
  text.reserve(text.size() + crcs.size() * kSumDigits);
  for (const uint32_t crc : crcs) fmt::format_to(std::back_inserter(text), "{:08x}", crc);
  return text;
}

BlockSums BlockSums::parse(std::string_view text, std::span<const size_t> tensor_bytes,
                           const std::string& where) {
  const auto damaged = [&] {
    return input_error(where, "metadata key '{}' does not hold the checksums of the data", kKey)
        .hint("the file was changed on disk or while copied: copy it again, or write it again");
  };
  const size_t colon = text.find(':');
  size_t block = 0, n_blocks = 0;
  if (colon == std::string_view::npos || !parse_whole(text.substr(0, colon), 10, block) ||
      block == 0)
    throw damaged();
  const std::string_view digits = text.substr(colon + 1);
  for (const size_t bytes : tensor_bytes) n_blocks += n_blocks_of(bytes, block);
  if (digits.size() != n_blocks * kSumDigits) throw damaged();  // before they are given room
  BlockSums sums(block, tensor_bytes);
  for (size_t i = 0; i < n_blocks; ++i)
    if (!parse_whole(digits.substr(i * kSumDigits, kSumDigits), 16, sums.crcs[i])) throw damaged();
  return sums;
}

}  // namespace tandem::io
