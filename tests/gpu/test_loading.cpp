#include <cstring>
#include <limits>

#include "gpu/device_buffer.h"
#include "kernels/number_patterns.h"
#include "kv/paged_store.h"

using namespace tandem;
using namespace tandem::test;

namespace {

template <class In>
void check_convert(const std::vector<In>& in, DType from, DType to) {
  const auto n = static_cast<int64_t>(in.size());
  const auto blocks = static_cast<int>((n + kConvertBlock - 1) / kConvertBlock);
  ActBuffer want(to, in.size());
  ConvertParams p{.out = want.data(), .in = in.data(), .n = n, .from = from, .to = to};
  convert_ref(p, {0, blocks});
  for (const size_t offset : {0u, 1u, 3u}) {
    CAPTURE(offset);
    ActBuffer got(to, in.size(), offset);
    const DeviceBuffer device_in(in, offset * sizeof(In)), out = on_device(got);
    p.out = out.raw();
    p.in = device_in.raw();
    require_same_in_graph(out, [&] { cuda_table().convert(p, queue().stream()); });
    cuda::launched("convert", queue().stream());
    read_back(out, got);
    for (size_t i = 0; i < in.size(); ++i) {
      CAPTURE(i);
      REQUIRE(same_number(got.get(i), want.get(i)));
    }
  }
}

}  // namespace

TEST_SUITE("gpu/kernels/convert") {
  TEST_CASE("every number, every pair of types, bit for bit") {
    for_every_conversion(
        [](const auto& numbers, DType from, DType to) { check_convert(numbers, from, to); });
  }

  TEST_CASE("tails") {
    for (const size_t n : {1u, 2u, 7u, 8u, 9u, 2047u, 2049u, 4097u})
      check_convert(std::vector<uint16_t>(n, 0x3c01), DType::f16, DType::bf16);
  }
}

TEST_SUITE("gpu/kernels/embed") {
  TEST_CASE("rows of any type; ids outside the table give NaN") {
    const auto half = all_half_patterns();
    for (const DType from : {DType::f16, DType::bf16, DType::f32})
      for (const int dim : {1, 7, 16, 33, 256, 1024})
        for (const size_t offset : {0u, 1u}) {
          CAPTURE(dtype_name(from));
          CAPTURE(dim);
          CAPTURE(offset);
          const auto width = static_cast<size_t>(dim);
          const size_t vocab = 65536 * 2 / dtype_bytes(from) / width;
          const DeviceBuffer table(half.data(), vocab * width * dtype_bytes(from),
                                   offset * dtype_bytes(from));
          const auto v = static_cast<int32_t>(vocab);
          const std::vector<int32_t> ids = {v - 1,
                                            0,
                                            v / 2,
                                            0,
                                            v,
                                            -1,
                                            std::numeric_limits<int32_t>::max(),
                                            std::numeric_limits<int32_t>::min()};
          constexpr size_t kValid = 4;
          Buffer<float> got(ids.size() * width, offset), want(kValid * width);
          const DeviceBuffer out = on_device(got), device_ids(ids);
          EmbedParams p{.out = want.data(),
                        .table = half.data(),
                        .ids = ids.data(),
                        .n_rows = kValid,
                        .dim = dim,
                        .from = from};
          embed_ref(p, {0, kValid});
          p = {.out = out.as<float>(),
               .table = table.raw(),
               .ids = device_ids.as<int32_t>(),
               .n_rows = static_cast<int>(ids.size()),
               .dim = dim,
               .from = from,
               .vocab = v};
          require_same_in_graph(out, [&] { cuda_table().embed(p, queue().stream()); });
          cuda::launched("embed", queue().stream());
          out.read(got.data());
          for (size_t i = 0; i < got.size(); ++i) {
            CAPTURE(i);
            REQUIRE(same_number(got[i], i < want.size() ? want[i] : std::nanf("")));
          }
        }
  }
}

TEST_SUITE("gpu/kernels/fill_random") {
  TEST_CASE("the reference's bits, wherever a piece begins and ends") {
    for (const DType to : {DType::f32, DType::bf16})
      for (const int64_t count : {int64_t{1}, int64_t{129}, int64_t{3} * kFillBlock + 77})
        for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128 * 5 + 31},
                                    (int64_t{1} << 36) - 1000}) {
          CAPTURE(dtype_name(to));
          CAPTURE(count);
          CAPTURE(first);
          ActBuffer got(to, static_cast<size_t>(count), 1), want(to, static_cast<size_t>(count));
          FillRandomParams p{.out = want.data(),
                             .seed = 0x123456789abcdefull,
                             .tensor = 42,
                             .first = first,
                             .count = count,
                             .stddev = 0.02f,
                             .to = to};
          fill_random_ref(p, {0, 4});
          const DeviceBuffer out = on_device(got);
          p.out = out.raw();
          require_same_in_graph(out, [&] { cuda_table().fill_random(p, queue().stream()); });
          cuda::launched("fill_random", queue().stream());
          read_back(out, got);
          REQUIRE_CLOSE(got, want, ([](size_t) { return 0.0; }));
        }
  }
}

namespace {

/// A PagedStore and its copy in device memory, filled with bytes that tell all rows apart.
struct Pools {
  kv::PagedStore::Spec spec;
  Arena arena;
  kv::PagedStore store;
  size_t bytes;

  static MemoryPlan plan(const kv::PagedStore::Spec& s) {
    MemoryPlan p;
    kv::PagedStore::plan(s, p);
    return p;
  }
  explicit Pools(const kv::PagedStore::Spec& s)
      : spec(s),
        arena(plan(s)),
        store(s, arena),
        bytes(s.page_bytes() / 2 * static_cast<size_t>(s.n_pages)) {
    PhiloxStream stream(3);
    for (void* half : {k(), v()})
      for (size_t i = 0; i < bytes / 2; ++i)
        static_cast<uint16_t*>(half)[i] = static_cast<uint16_t>(stream.next());
  }
  void* k() const { return store.k(0).raw(); }
  void* v() const { return store.v(0).raw(); }
  std::vector<unsigned char> half(const void* p) const {
    const auto* begin = static_cast<const unsigned char*>(p);
    return {begin, begin + bytes};
  }
  PagePools params(const DeviceBuffer& device_k, const DeviceBuffer& device_v) const {
    return {.k = device_k.raw(),
            .v = device_v.raw(),
            .n_layers = spec.n_layers,
            .n_pages = spec.n_pages,
            .n_kv_heads = spec.n_kv_heads,
            .row_bytes = spec.head_dim * static_cast<int>(dtype_bytes(spec.dtype))};
  }
};

constexpr kv::PagedStore::Spec kSpecs[] = {
    {.n_layers = 3,
     .n_kv_heads = 2,
     .head_dim = 128,
     .dtype = DType::bf16,
     .n_pages = 6,
     .max_slots = 3,
     .max_pages = 5},
    {.n_layers = 2,
     .n_kv_heads = 3,
     .head_dim = 7,
     .dtype = DType::bf16,
     .n_pages = 6,
     .max_slots = 3,
     .max_pages = 5},
    {.n_layers = 1,
     .n_kv_heads = 1,
     .head_dim = 6,
     .dtype = DType::f32,
     .n_pages = 6,
     .max_slots = 3,
     .max_pages = 5},
};

}  // namespace

TEST_SUITE("gpu/kernels/copy") {
  TEST_CASE("host_copy brings what the host wrote last, and takes it back") {
    for (const size_t bytes : {size_t{16}, size_t{48}, size_t{4096}, size_t{300'000}}) {
      CAPTURE(bytes);
      const cuda::PinnedBuffer there(bytes), back(bytes + 16);
      const DeviceBuffer device(bytes);
      const cuda::Graph graph(queue(), [&] {
        cuda_table().host_copy({device.raw(), there.data(), bytes}, queue().stream());
        cuda_table().host_copy({back.data(), device.raw(), bytes}, queue().stream());
      });
      CHECK(graph.nodes() == 2);
      for (int turn = 1; turn < 4; ++turn) {
        std::fill_n(back.data(), bytes + 16, std::byte{0xee});
        for (size_t i = 0; i < bytes; ++i)
          there.data()[i] = static_cast<std::byte>(i * 7 + i / 256 + static_cast<size_t>(turn));
        graph.launch(queue());
        queue().wait();
        REQUIRE(std::equal(there.data(), there.data() + bytes, back.data()));
        REQUIRE(std::all_of(back.data() + bytes, back.data() + bytes + 16,
                            [](std::byte b) { return b == std::byte{0xee}; }));
      }
    }
  }

  TEST_CASE("read_clock tells nanoseconds between two moments of a queue") {
    const DeviceBuffer clock(2 * sizeof(uint64_t)), work(size_t{64} << 20);
    cuda::Event begun(true), ended(true);
    cuda_table().read_clock(clock.as<uint64_t>(), queue().stream());  // loads the kernel
    queue().wait();
    begun.record(queue());
    cuda_table().read_clock(clock.as<uint64_t>(), queue().stream());
    for (int i = 0; i < 40; ++i)
      queue().copy_within(work.raw(), work.as<char>() + work.bytes() / 2, work.bytes() / 2);
    cuda_table().read_clock(clock.as<uint64_t>() + 1, queue().stream());
    ended.record(queue());
    const std::vector<uint64_t> ns = clock.vector<uint64_t>();
    const double ms = 1e-6 * static_cast<double>(ns[1] - ns[0]);
    CHECK(ms > 0.3);  // 2.5 GB read and written
    CHECK(std::abs(ms - ended.ms_since(begun)) < 0.05);
  }
}

TEST_SUITE("gpu/kernels/page") {
  TEST_CASE("copy_page copies what the store copies when a fork writes") {
    for (const auto& spec : kSpecs) {
      CAPTURE(spec.head_dim);
      Pools pools(spec);
      const DeviceBuffer k(pools.half(pools.k())), v(pools.half(pools.v()));
      const int slot = pools.store.acquire();
      pools.store.reserve(slot, 100);
      pools.store.set_length(slot, 100);
      const int fork = pools.store.fork(slot);
      pools.store.reserve(fork, 101);
      const CopyPageParams p{.pools = pools.params(k, v),
                             .from = pools.store.page(slot, 1),
                             .to = pools.store.page(fork, 1)};
      REQUIRE(p.from != p.to);
      const cuda::Graph graph(queue(), [&] { cuda_table().copy_page(p, queue().stream()); });
      CHECK(graph.nodes() == 1);
      graph.launch(queue());
      CHECK(k.vector<unsigned char>() == pools.half(pools.k()));
      CHECK(v.vector<unsigned char>() == pools.half(pools.v()));
    }
  }

  TEST_CASE("set_pages writes the cells that it is told, and no other") {
    for (const int n : {1, 255, 256, 1000}) {
      CAPTURE(n);
      std::vector<int32_t> table(2001, -1);
      const DeviceBuffer device_table(table);
      std::vector<PageChange> changes;
      for (int i = 0; i < n; ++i) changes.push_back({2 * i + 1, 7 * i});
      for (const PageChange& c : changes) table[static_cast<size_t>(c.cell)] = c.page;
      const DeviceBuffer device_changes(changes);
      const SetPagesParams p{.table = device_table.as<int32_t>(),
                             .changes = device_changes.as<PageChange>(),
                             .n_changes = n};
      const cuda::Graph graph(queue(), [&] { cuda_table().set_pages(p, queue().stream()); });
      CHECK(graph.nodes() == 1);
      graph.launch(queue());
      CHECK(device_table.vector<int32_t>() == table);
    }
  }

  TEST_CASE("path_moves closes the gaps of a path, and leaves nodes without keys") {
    // Two texts of 70 and 127 tokens in pages that are not in order; trees of 9 nodes, the last 2
    // without keys. The first keeps nodes 1, 3, 8, the second 2 and 6, over the end of a page.
    // Their tables stand in rows 2 and 0.
    const std::vector<int32_t> table{7, 0, 5, -1, -1, -1, 4, 2, -1}, slot{2, 0}, position{70, 127},
        n_accepted{3, 2};
    std::vector<int32_t> path(18, -1);
    path[0] = 1, path[1] = 3, path[2] = 8, path[9] = 2, path[10] = 6;
    const DeviceBuffer d_table(table), d_slot(slot), d_position(position), d_accepted(n_accepted),
        d_path(path);
    const DeviceBuffer from(8 * sizeof(int32_t)), to(8 * sizeof(int32_t));
    cuda_table().path_moves({.from_token = from.as<int32_t>(),
                             .to_token = to.as<int32_t>(),
                             .path = d_path.as<int32_t>(),
                             .n_accepted = d_accepted.as<int32_t>(),
                             .position = d_position.as<int32_t>(),
                             .page_table = d_table.as<int32_t>(),
                             .slot = d_slot.as<int32_t>(),
                             .n_seqs = 2,
                             .n_nodes = 9,
                             .max_pages = 3,
                             .max_moves = 4,
                             .n_nodes_held = 7},
                            queue().stream());
    // Roots are tokens 69 and 126: node 3 goes from token 72 to 71; 2 from 128 to 127, 6 from 132
    // to 128.
    CHECK(from.vector<int32_t>() ==
          std::vector<int32_t>{-1, 2 * 64 + 8, -1, -1, 5 * 64, 5 * 64 + 4, -1, -1});
    CHECK(to.vector<int32_t>() == std::vector<int32_t>{-1, 2 * 64 + 7, -1, -1, 63, 5 * 64, -1, -1});
  }

  TEST_CASE("move_tokens moves what the store moves, one token after another") {
    for (const auto& spec : kSpecs) {
      CAPTURE(spec.head_dim);
      Pools pools(spec);
      const DeviceBuffer k(pools.half(pools.k())), v(pools.half(pools.v()));
      const int slot = pools.store.acquire();
      pools.store.reserve(slot, 200);
      // Each target was read by an earlier move, one page ends within, and one token stays.
      std::vector<int32_t> from, to;
      const auto token = [&](int position) {
        return pools.store.page(slot, position / kPageTokens) * kPageTokens +
               position % kPageTokens;
      };
      for (int i = 0; i < 19; ++i) {
        const int source = i == 0 ? 120 : 121 + 2 * i, target = 120 + i;
        from.push_back(token(source));
        to.push_back(token(target));
        const kv::PagedStore::Move move{slot, source, target};
        pools.store.move_tokens({&move, 1});
      }
      from.push_back(-1);
      to.push_back(token(5));
      const DeviceBuffer device_from(from), device_to(to);
      const MoveTokensParams p{.pools = pools.params(k, v),
                               .from_token = device_from.as<int32_t>(),
                               .to_token = device_to.as<int32_t>(),
                               .n_moves = static_cast<int>(from.size())};
      const cuda::Graph graph(queue(), [&] { cuda_table().move_tokens(p, queue().stream()); });
      CHECK(graph.nodes() == 1);
      graph.launch(queue());
      CHECK(k.vector<unsigned char>() == pools.half(pools.k()));
      CHECK(v.vector<unsigned char>() == pools.half(pools.v()));
    }
  }
}
