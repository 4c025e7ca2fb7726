#include <doctest/doctest.h>

#include <cstring>

#include "gguf_bytes.h"
#include "io/gguf_write.h"
#include "temporary_folder.h"

using namespace tandem;
using io::GgufType;

TEST_SUITE("io/gguf-write") {
  TEST_CASE("codes become the blocks that they came from") {
    int compared = 0;
    for (const io::Json& entry : test::golden_gguf()["blocks"]) {
      const uint32_t number = entry["id"];
      if (number != 2 && number != 8) continue;
      const auto type = static_cast<GgufType>(number);
      const std::string blocks = test::from_hex(entry["hex"]);
      const auto n = static_cast<int64_t>(blocks.size() / io::gguf_bytes(type, 32)) * 32;
      std::vector<std::byte> codes(matrix_bytes(io::gguf_format(type), 1, n)), again(blocks.size());
      REQUIRE(
          io::gguf_codes(type, reinterpret_cast<const std::byte*>(blocks.data()), n, codes.data()));
      io::gguf_blocks(type, codes.data(), n, again.data());
      CHECK(std::memcmp(again.data(), blocks.data(), blocks.size()) == 0);
      ++compared;
    }
    CHECK(compared >= 2);
  }

  TEST_CASE("the reader finds what was written") {
    io::GgufWriter writer;
    writer.text("general.architecture", "llama");
    writer.number("a.number", 4'000'000'000);
    writer.real("a.real", .5);
    writer.truth("a.truth", true);
    writer.texts("some.texts", std::vector<std::string>{"", "one", "two"});
    writer.ints("some.ints", std::vector<int32_t>{-1, 7});
    writer.reals("some.reals", std::vector<float>{.25f});
    writer.tensor("first", GgufType::f32, {3});
    writer.tensor("second", GgufType::q8_0, {2, 32});
    CHECK(writer.data_bytes() == 12 + 68);
    const test::TemporaryFolder folder;
    writer.write(folder / "file.gguf", [&](size_t i, const io::ByteSink& sink) {
      const std::vector<std::byte> bytes(i == 0 ? 6 : 34, std::byte{static_cast<uint8_t>(i + 1)});
      sink(bytes);
      sink(bytes);
    });
    const io::Gguf file = io::Gguf::open(folder / "file.gguf");
    CHECK(file.find_int("a.number", 0, int64_t{1} << 32) == 4'000'000'000);
    CHECK(file.find_double("a.real") == .5);
    CHECK(file.find_bool("a.truth") == true);
    CHECK(file.strings("some.texts") == std::vector<std::string_view>{"", "one", "two"});
    CHECK(file.ints("some.ints") == std::vector<int64_t>{-1, 7});
    CHECK(file.floats("some.reals") == std::vector<float>{.25f});
    const io::GgufTensor* const t = file.find("second");
    REQUIRE(t != nullptr);
    CHECK(t->shape == io::Shape{2, 32});
    std::vector<std::byte> read(t->bytes);
    file.read(*t, 0, read);
    CHECK(read == std::vector<std::byte>(68, std::byte{2}));
  }
}
