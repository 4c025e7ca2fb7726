#include "kv/fill_random.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/loading.h"

namespace tandem::kv {
namespace {

/// The last queries that policies read.
void fill_queries(QueryRing& queries, int slot, int n, uint64_t seed) {
  const QueryRing::Spec& spec = queries.spec();
  const int rows = std::min(n, spec.window), n_tensors = 3 * spec.n_layers;
  std::vector<std::byte> values(static_cast<size_t>(rows) * spec.row_bytes());
  for (int layer = 0; layer < spec.n_layers; ++layer) {
    ops::fill_random(values.data(), spec.dtype,
                     {.seed = seed,
                      // After those of keys and values.
                      .tensor = static_cast<uint32_t>(n_tensors - 1 - layer),
                      .n = int64_t{rows} * spec.n_heads * spec.head_dim});
    queries.write(slot, layer, n - rows, rows, values.data());
  }
}

/// Fills a page of a layer's keys, or of its values; `i` counts the pages of the text.
void fill_page(const Tensor& page, void* rows, DType dtype, int layer, uint32_t half, int i,
               uint64_t seed, Stream stream = {}) {
  ops::fill_random(rows, dtype,
                   {.seed = seed,
                    .tensor = 2 * static_cast<uint32_t>(layer) + half,
                    .first = i * page.elements(),
                    .n = page.elements()},
                   stream);
}

/// Fills a sequence as a prompt that goes through the layers: quantized keys come from there.
void fill_by_layers(Cache& cache, int slot, int n, uint64_t seed) {
  std::vector<std::vector<SeqRows>> rows;
  for (int begin = 0; begin < n; begin += cache.max_rows())
    rows.push_back({{slot, std::min(cache.max_rows(), n - begin), begin + cache.max_rows() >= n}});
  const std::vector<Step> steps = cache.begin_prompts(rows);
  fill_queries(*cache.queries(), slot, n, seed);
  for (int layer = 0; layer < cache.geometry().n_layers; ++layer) {
    cache.residence().begin_layer(layer, steps);
    for (const Step& step : steps) {
      const LayerKeys keys = cache.keys(layer, step);
      const int first = step.pos.front() / kPageTokens, last = step.pos.back() / kPageTokens;
      parallel_for(last - first + 1, [&](int i) {
        const int row = std::max(0, (first + i) * kPageTokens - step.pos.front());
        for (const uint32_t half : {0u, 1u}) {
          const Tensor page = (half == 0 ? keys.k : keys.v).slice(keys.step.row_page[row], 1);
          fill_page(page, page.raw(), cache.geometry().dtype, layer, half, first + i, seed);
        }
      });
    }
    cache.residence().end_layer(layer, steps);
  }
  cache.residence().end_prompts();
  for (const Step& step : steps) cache.commit(step);
}

}  // namespace

void fill_random(Cache& cache, int slot, int n, uint64_t seed) {
  TANDEM_CHECK(cache.length(slot) == 0, "cannot fill a sequence that has {} tokens",
               cache.length(slot));
  if (cache.residence().facts().quantized) return fill_by_layers(cache, slot, n, seed);
  const PagedStore& store = cache.store();
  cache.adopt_pages(slot, n, [](int, int) { return true; });
  const int n_pages = static_cast<int>(store.pages(slot).size());
  for (int layer = 0; layer < cache.geometry().n_layers; ++layer) {
    const PagedStore& whole = cache.whole_store(layer);
    const Tensor pools[] = {whole.k(layer), whole.v(layer)};
    const bool on_gpu = pools[0].device().kind == Device::Kind::cuda;
    const DType dtype = cache.geometry().dtype;
    const auto fill = [&](int i, uint32_t half) {
      const int32_t id = whole.page(slot, i);
      if (id < 0) return;  // before the layer's window
      const Tensor page = pools[half].slice(id, 1);
      const auto fill_rows = [&](void* rows) {
        fill_page(page, rows, dtype, layer, half, i, seed,
                  on_gpu ? store.exec().stream() : Stream{});
      };
      if (!whole.spec().eight_bit) return fill_rows(page.raw());
      std::vector<std::byte> rows(static_cast<size_t>(page.elements()) * dtype_bytes(dtype));
      fill_rows(rows.data());
      write_page(whole.page_run(layer, id), half == 1, rows.data());
    };
    const auto fill_both = [&](int i) {
      fill(i, 0);
      fill(i, 1);
    };
    if (on_gpu)
      for (int i = 0; i < n_pages; ++i) fill_both(i);
    else
      parallel_for(n_pages, fill_both);
  }
  if (QueryRing* queries = cache.queries()) fill_queries(*queries, slot, n, seed);
  cache.adopt_prompt(slot);
}

}  // namespace tandem::kv
