#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "error_text.h"
#include "io/file.h"
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

  TEST_CASE("a flipped bit is found where it is read, and named") {
    const test::TemporaryFolder folder;
    std::vector<uint8_t> u(100);
    for (size_t i = 0; i < u.size(); ++i) u[i] = static_cast<uint8_t>(i);
    const std::vector<float> f = {1.5f, -2.5f, 3.5f};
    const std::vector<TensorView> tensors = {{"u", DType::u8, {100}, bytes_of(u)},
                                             {"none", DType::u8, {0}, {}},
                                             {"f", DType::f32, {3}, bytes_of(f)}};
    const auto path = folder / "s.safetensors";
    write_safetensors(path, tensors, {{"a", "b"}}, 16);
    const auto read = [&](const char* name, size_t begin, size_t n) {
      const auto file = io::Safetensors::open(path);
      CHECK(file.metadata() == std::map<std::string, std::string>{{"a", "b"}});
      std::vector<std::byte> out(n);
      file.read(file.tensor(name), begin, out);
      return out;
    };
    CHECK(std::ranges::equal(read("u", 0, 100), bytes_of(u)));
    CHECK(std::ranges::equal(read("f", 0, 12), bytes_of(f)));
    CHECK(read("none", 0, 0).empty());
    std::string image = io::read_file(path);
    const std::string whole = image;
    image[image.size() - 100 + 97] ^= 4;  // u is last, f before it
    folder.write("s.safetensors", image);
    const std::string damaged =
        path.string() + ": tensor 'u' is damaged: bytes 96 to 99 have checksum ";
    CHECK(test::input_error_text([&] { read("u", 0, 100); }).starts_with(damaged));
    CHECK(test::input_error_text([&] { read("u", 90, 10); }).starts_with(damaged));
    CHECK(test::hint_text([&] { read("u", 96, 4); }) ==
          "the file was changed on disk or while copied: copy it again, or write it again");
    CHECK(read("u", 16, 80).size() == 80);  // other blocks are read alone
    CHECK(read("f", 0, 12).size() == 12);
    // Of the checksums themselves a flipped bit is found, too, or they are none that are known.
    const size_t at = whole.find("16:", whole.find("crc32.blocks")) + 3;
    image = whole;
    image[at] = image[at] == '0' ? '1' : '0';
    folder.write("s.safetensors", image);
    CHECK(test::input_error_text([&] { read("f", 0, 12); }).find("'f' is damaged") !=
          std::string::npos);
    for (const std::string block : {"20:", "00:", "1x:", "16;"}) {
      image = whole;
      image.replace(at - 3, 3, block);
      folder.write("s.safetensors", image);
      CAPTURE(block);
      CHECK(test::input_error_text([&] { read("f", 0, 12); }) ==
            path.string() +
                ": metadata key 'crc32.blocks' does not hold the checksums of the data");
    }
  }

  TEST_CASE("no tensor at all is a file too") {
    const test::TemporaryFolder folder;
    io::write_safetensors(folder / "s.safetensors", {});
    CHECK(io::Safetensors::open(folder / "s.safetensors").entries().empty());
  }

  TEST_CASE("in pieces of any size the same file is written, checksums included") {
    const test::TemporaryFolder folder;
    std::vector<uint8_t> u(1'000'001);
    for (size_t i = 0; i < u.size(); ++i) u[i] = static_cast<uint8_t>(i * i >> 3);
    const std::vector<float> f = {1.5f, -2.5f, 3.5f};
    const std::vector<TensorView> tensors = {{"u", DType::u8, {std::ssize(u)}, bytes_of(u)},
                                             {"none", DType::u8, {0}, {}},
                                             {"f", DType::f32, {3}, bytes_of(f)}};
    const std::map<std::string, std::string> metadata = {{"\"crc32.blocks", "a"}, {"b", "c"}};
    const int before = max_threads();
    set_threads(3);
    for (const size_t block : {size_t{7}, size_t{4096}, size_t{2'000'000}}) {
      write_safetensors(folder / "whole", tensors, metadata, block);
      for (const size_t piece : {size_t{1000}, size_t{4096}, size_t{300'000}}) {
        const auto write = [&](size_t i, const io::ByteSink& sink) {
          for (auto rest = tensors[i].bytes; !rest.empty();) {
            const size_t n = std::min(piece, rest.size());
            sink(rest.first(n));
            rest = rest.subspan(n);
          }
        };
        write_safetensors(folder / "pieces", tensors, metadata, write, block);
        CHECK(io::read_file(folder / "pieces") == io::read_file(folder / "whole"));
      }
      const auto file = io::Safetensors::open(folder / "whole");
      CHECK(file.metadata() == metadata);
      std::vector<std::byte> read(u.size());
      file.read(file.tensor("u"), 0, read);  // checks the checksums
      CHECK(std::memcmp(read.data(), u.data(), u.size()) == 0);
    }
    set_threads(before);
  }

  TEST_CASE("a header that no reader takes is refused before anything is written") {
    const test::TemporaryFolder folder;
    const auto path = folder / "s.safetensors";
    const std::string most(io::kLargestHeader, 'x');
    CHECK(test::input_error_text([&] {
            io::write_safetensors(path, {}, {{"a", most}});
          }).starts_with(path.string() + ": needs a header of 1000000"));
    CHECK(folder.n_files() == 0);
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
