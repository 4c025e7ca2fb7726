#include "decode/state_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/spec/weight_formats.h"
#include "tensor/comm.h"

namespace tandem::decode {

std::string page_name(char which, int layer, int page) {
  return fmt::format("{}.{}.{}", which, layer, page);
}

std::string queries_name(int layer) { return fmt::format("q.{}", layer); }

const char* activations_of(const ModelFiles& files) {
  const auto& formats = files.config.formats;
  if (formats && formats->fp8_inputs) return "fp8";
  return formats && formats->int8_inputs ? "int8" : "compute";
}

int pages_of(size_t tokens) { return static_cast<int>((tokens + kPageTokens - 1) / kPageTokens); }

StatePage::StatePage(const kv::PagedStore& store, int layer, char which, int32_t page)
    : run_(store.page_run(layer, page)),
      pool_((which == 'k' ? store.k(layer) : store.v(layer)).slice(page, 1)),
      dtype_(store.spec().dtype),
      eight_bit_(store.spec().eight_bit),
      values_(which == 'v') {}

std::span<std::byte> StatePage::in_place() const {
  if (on_gpu() || eight_bit_) return {};
  return {static_cast<std::byte*>(pool_.raw()), bytes()};
}

void StatePage::read(std::byte* to, const Exec& exec) const {
  if (on_gpu())
    exec.queue->copy_out(to, pool_.raw(), bytes());
  else
    kv::read_page(run_, values_, to);
}

void StatePage::write(const std::byte* from, const Exec& exec) const {
  if (on_gpu())
    exec.queue->copy_in(pool_.raw(), from, bytes());
  else
    kv::write_page(run_, values_, from);
}

std::vector<std::byte> join_heads(std::span<const std::byte> own, const HeadRows& rows,
                                  const ModelFiles& files, Comm& comm) {
  std::vector<model::Shard::Part> parts;
  int most = 0;
  for (int r = 0; r < comm.size(); ++r) {
    parts.push_back(model::shard_of(files.whole, r, comm.size()).*rows.part);
    most = std::max(most, parts.back().n);
  }
  const size_t part_bytes = rows.n_rows * static_cast<size_t>(most) * rows.head_bytes;
  std::vector<std::byte> all(part_bytes * parts.size()), whole(rows.n_rows * rows.row_bytes());
  std::ranges::copy(own, all.begin() + static_cast<ptrdiff_t>(part_bytes) * comm.rank());
  comm.gather_on_host(all.data(), part_bytes);
  // Heads that several ranks have are the same on each.
  for (size_t r = 0; r < parts.size(); ++r) {
    const size_t bytes = static_cast<size_t>(parts[r].n) * rows.head_bytes;
    for (size_t i = 0; i < rows.n_rows; ++i)
      std::memcpy(whole.data() + i * rows.row_bytes() +
                      static_cast<size_t>(parts[r].first) * rows.head_bytes,
                  all.data() + r * part_bytes + i * bytes, bytes);
  }
  return whole;
}

}  // namespace tandem::decode
