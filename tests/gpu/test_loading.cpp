#include <cstring>
#include <limits>

#include "gpu/device_buffer.h"
#include "kernels/number_patterns.h"

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

TEST_SUITE("gpu/tensor/cuda") {
  TEST_CASE("asking about a GPU leaves the thread on the one that it uses") {
    cuda::use_device(0);
    for (int i = 0; i < cuda::device_count(); ++i) {
      CAPTURE(i);
      CHECK(cuda::device_info(i).total_bytes > 0);
      // An event is of the GPU in use, and can be recorded on a queue of that alone.
      cuda::Event event;
      event.record(queue());
      CHECK_NOTHROW(event.wait());
    }
  }
}
