#include <doctest/doctest.h>

#include <cstring>

#include "base/error.h"
#include "io/safetensors.h"
#include "temporary_folder.h"

using namespace tandem;
using io::TensorView;

namespace {

std::span<const std::byte> bytes_of(const auto& values) { return std::as_bytes(std::span(values)); }

}  // namespace

TEST_SUITE("io/safetensors_write") {
  TEST_CASE("what is written is read back, aligned to its type") {
    const test::TemporaryFolder folder;
    const std::vector<uint8_t> u = {1, 2, 3};
    const std::vector<float> f = {1.5f, -2.5f};
    const std::vector<int64_t> i = {INT64_MIN, 7};
    const std::vector<uint16_t> h = {0x3F80};
    const std::vector<TensorView> tensors = {{"odd \"name\"\u00e9", DType::u8, {3}, bytes_of(u)},
                                             {"f", DType::f32, {2, 1}, bytes_of(f)},
                                             {"i", DType::i64, {2}, bytes_of(i)},
                                             {"h", DType::bf16, {}, bytes_of(h)},
                                             {"empty", DType::f16, {0, 5}, {}}};
    write_safetensors(folder / "s.safetensors", tensors, {{"format", "tandem"}, {"n", "2"}});
    CHECK(folder.n_files() == 1);
    const auto file = io::Safetensors::open(folder / "s.safetensors");
    CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "tandem"}, {"n", "2"}});
    CHECK(file.entries().size() == tensors.size());
    for (const TensorView& written : tensors) {
      CAPTURE(written.name);
      const TensorView read = file.tensor(written.name);
      CHECK(read.dtype == written.dtype);
      CHECK(read.shape == written.shape);
      REQUIRE(read.bytes.size() == written.bytes.size());
      CHECK(std::equal(read.bytes.begin(), read.bytes.end(), written.bytes.begin()));
      if (!read.bytes.empty() && !written.shape.empty())
        CHECK(reinterpret_cast<uintptr_t>(read.bytes.data()) %
                  (read.bytes.size() / static_cast<size_t>(written.shape[0])) ==
              0);
    }
  }

  TEST_CASE("no tensor at all is a file too") {
    const test::TemporaryFolder folder;
    io::write_safetensors(folder / "s.safetensors", {});
    CHECK(io::Safetensors::open(folder / "s.safetensors").entries().empty());
  }

  TEST_CASE("wrong sizes and repeated names are bugs of the caller") {
    const test::TemporaryFolder folder;
    const std::vector<float> f = {1.0f};
    const auto write = [&](std::vector<TensorView> tensors) {
      io::write_safetensors(folder / "s.safetensors", tensors);
    };
    CHECK_THROWS_WITH_AS(write({{"a", DType::f32, {2}, bytes_of(f)}}),
                         doctest::Contains("tensor 'a' of shape [2] needs 8 bytes, has 4"), Error);
    CHECK_THROWS_WITH_AS(
        write({{"a", DType::f32, {1}, bytes_of(f)}, {"a", DType::f32, {1}, bytes_of(f)}}),
        doctest::Contains("tensor 'a' written twice"), Error);
    CHECK(folder.n_files() == 0);
  }
}
