#include <doctest/doctest.h>

#include <cstring>

#include "error_text.h"
#include "gguf_bytes.h"
#include "io/gguf.h"
#include "io/json.h"
#include "ops/quantizing.h"
#include "safetensors_text.h"
#include "temporary_folder.h"

using namespace tandem;
using io::Gguf;
using io::Json;
using test::from_hex;
using test::GgufBytes;

namespace {

Gguf parse(std::string_view image) { return Gguf::parse(test::as_bytes(image), "m.gguf"); }

std::string error_of(std::string_view image) {
  return test::input_error_text([&] { parse(image); });
}

GgufBytes small() {
  GgufBytes file;
  file.text("general.architecture", "llama");
  file.number("llama.block_count", 2);
  file.tensor("a", {4, 2}, 0, std::string(32, 'x'));
  file.tensor("b", {32}, 8, std::string(34, 'y'));
  return file;
}

}  // namespace

TEST_SUITE("io/gguf") {
  TEST_CASE("every encoding decodes to the golden numbers, bit for bit") {
    int n = 0;
    for (const Json& block : test::golden_gguf().at("blocks")) {
      CAPTURE(block.at("type").get<std::string>());
      const auto type = block.at("id").get<uint32_t>();
      const std::string bytes = from_hex(block.at("hex")),
                        want = from_hex(block.at("values_f32_hex"));
      if (!io::is_gguf_type(type)) continue;
      ++n;
      const auto of = static_cast<io::GgufType>(type);
      const auto n_numbers = static_cast<int64_t>(want.size() / sizeof(float));
      CHECK(io::gguf_type_name(type) == block.at("type"));
      REQUIRE(io::gguf_bytes(of, n_numbers) == bytes.size());
      std::vector<float> found(static_cast<size_t>(n_numbers));
      io::decode_gguf(of, test::as_bytes(bytes).data(), n_numbers, found.data());
      CHECK(std::memcmp(found.data(), want.data(), want.size()) == 0);
    }
    CHECK(n == 17);
  }

  TEST_CASE("codes of a block whose scale is not finite are told apart") {
    using enum io::GgufType;
    for (const auto& [type, at] : {std::pair{q4_0, 0},
                                   {q8_0, 0},
                                   {q5_0, 0},
                                   {q5_1, 2},
                                   {q6_k, 208},
                                   {q4_k, 0},
                                   {q4_k, 2},
                                   {q5_k, 2},
                                   {q2_k, 82},
                                   {q3_k, 108}}) {
      const int64_t n = io::gguf_block(type);
      const size_t bytes = io::gguf_bytes(type, n);
      std::vector<std::byte> block(bytes, std::byte{1}), codes(row_bytes(io::gguf_format(type), n));
      CHECK(io::gguf_codes(type, block.data(), n, codes.data()));
      for (const uint16_t bad : {uint16_t{0x7c00}, uint16_t{0xfc00}, uint16_t{0x7e01}}) {
        std::memcpy(block.data() + at, &bad, sizeof bad);
        CHECK_FALSE(io::gguf_codes(type, block.data(), n, codes.data()));
      }
    }
  }

  TEST_CASE("codes of blocks stand for their numbers, bit for bit") {
    int n = 0;
    for (const Json& block : test::golden_gguf().at("blocks")) {
      const auto number = block.at("id").get<uint32_t>();
      if (!io::is_gguf_type(number)) continue;
      const auto type = static_cast<io::GgufType>(number);
      const WeightFormat format = io::gguf_format(type);
      if (!is_coded(format)) continue;
      ++n;
      CAPTURE(io::gguf_type_name(number));
      const std::string bytes = from_hex(block.at("hex")),
                        want = from_hex(block.at("values_f32_hex"));
      const size_t size = want.size() / sizeof(float);
      const auto in = static_cast<int64_t>(size);
      std::vector<float> found(size);
      std::vector<std::byte> codes(row_bytes(format, in));
      REQUIRE(io::gguf_codes(type, test::as_bytes(bytes).data(), in, codes.data()));
      ops::dequantize(found.data(), DType::f32, codes.data(), format, 1, in);
      CHECK(std::memcmp(found.data(), want.data(), want.size()) == 0);
    }
    CHECK(n == 15);
  }

  TEST_CASE("formats of codes are those that hold every type without a finer code") {
    const auto name = [](io::GgufType type) { return format_name(io::gguf_format(type)); };
    using enum io::GgufType;
    CHECK(name(f16) == "f16");
    CHECK(name(q4_0) == "i4 g32 f16");
    CHECK(name(q4_1) == "i4 g32 f16 minimum");
    CHECK(name(q5_0) == "i5 g32 f16");
    CHECK(name(q5_1) == "i5 g32 f16 minimum");
    CHECK(name(q8_0) == "i8 g32 f16");
    CHECK(name(q2_k) == "i4 g16 two-level minimum");
    CHECK(name(q3_k) == "i4 g16 two-level");
    CHECK(name(q4_k) == "i4 g32 two-level minimum");
    CHECK(name(q5_k) == "i5 g32 two-level minimum");
    CHECK(name(q6_k) == "i6 g16 two-level");
  }

  TEST_CASE("a file of another writer: metadata and places of tensors") {
    const Json& want = test::golden_gguf().at("file");
    const std::string image = from_hex(want.at("hex"));
    const Gguf file = parse(image);
    CHECK(file.find_string("general.architecture") == "llama");
    CHECK(file.find_int("llama.embedding_length", 0, 100) == 32);
    CHECK(file.find_double("llama.rope.freq_base") == 500000.0);
    CHECK(file.find_bool("tokenizer.ggml.add_bos_token") == true);
    CHECK(file.strings("tokenizer.ggml.tokens") ==
          std::vector<std::string_view>{"<unk>", "<s>", "a"});
    CHECK(file.floats("tokenizer.ggml.scores") == std::vector{0.0f, -1.5f, -2.0f});
    CHECK(file.ints("tokenizer.ggml.token_type") == std::vector<int64_t>{2, 3, 1});
    CHECK_FALSE(file.find_int("llama.context_length", 0, 1));
    REQUIRE(file.tensors().size() == want.at("tensors").size());
    for (const Json& t : want.at("tensors")) {
      const io::GgufTensor* found = file.find(t.at("name").get<std::string>());
      REQUIRE(found != nullptr);
      CHECK(found->shape == t.at("shape_outermost_first").get<io::Shape>());
      CHECK(io::gguf_type_name(static_cast<uint32_t>(found->type)) == t.at("type"));
      CHECK(found->begin == t.at("file_offset"));
      CHECK(found->bytes == t.at("n_bytes"));
    }
    std::array<std::byte, 4> some{};
    file.read(*file.find("output_norm.weight"), 8, some);
    CHECK(std::memcmp(some.data(), image.data() + 616, 4) == 0);
  }

  TEST_CASE("a file that ends anywhere too early is refused") {
    const std::string image = from_hex(test::golden_gguf().at("file").at("hex"));
    for (size_t n = 0; n < image.size(); ++n) CHECK(error_of(image.substr(0, n)) != "");
    const std::string own = small().bytes();
    CHECK(error_of(own.substr(0, 60)).find("is a damaged GGUF file: ") != std::string::npos);
  }

  TEST_CASE("damage is named") {
    const auto damaged = [](const std::string& what) {
      return "m.gguf: is a damaged GGUF file: " + what;
    };
    CHECK(error_of("GGML") == "m.gguf: is not a GGUF file: it does not begin with 'GGUF'");
    GgufBytes other = small();
    other.version = 1;
    CHECK(error_of(other.bytes()) == "m.gguf: has GGUF version 1, expected 2 or 3");
    other.version = 0x03000000;
    CHECK(error_of(other.bytes()) == "m.gguf: is a big-endian GGUF file, which is not supported");
    other = small();
    other.more_tensors = uint64_t{1} << 62;
    CHECK(error_of(other.bytes()).starts_with(damaged("46116860184273879")));
    other = small();
    other.number("llama.block_count", 3);
    CHECK(error_of(other.bytes()) == damaged("it has the key 'llama.block_count' twice"));
    other = small();
    other.tensor("a", {4}, 0, std::string(16, 'x'));
    CHECK(error_of(other.bytes()) == damaged("it has tensor 'a' twice"));
    other = small();
    other.tensor_at("c", {4}, 0, 0);
    CHECK(error_of(other.bytes()) == damaged("tensors 'a' and 'c' overlap"));
    other = small();
    other.tensor_at("c", {4}, 0, 1000 * 32);
    CHECK(error_of(other.bytes()).find("tensor 'c' needs 16 bytes from byte ") !=
          std::string::npos);
    other = small();
    other.tensor_at("c", {4}, 0, 7);
    CHECK(error_of(other.bytes()) == damaged("tensor 'c' begins at 7, which is no multiple of 32"));
    other = small();
    other.tensor_at("c", {33}, 8, 0);
    CHECK(error_of(other.bytes()) ==
          damaged("tensor 'c' has rows of 33 numbers, which Q8_0 stores in blocks of 32"));
    other = small();
    other.tensor_at("c", {0}, 0, 0);
    CHECK(error_of(other.bytes()) == damaged("tensor 'c' has a dimension of 0"));
    other = small();
    other.tensor_at("c", {uint64_t{1} << 62, 4}, 0, 0);
    CHECK(error_of(other.bytes()).starts_with(damaged("tensor 'c' has a dimension of ")));
    for (const auto& [type, name] :
         {std::pair{23u, "IQ4_XS"}, {39u, "MXFP4"}, {9u, "Q8_1"}, {77u, "type 77"}}) {
      other = small();
      other.tensor_at("c", {256}, type, 0);
      CHECK(error_of(other.bytes()) ==
            std::string("m.gguf: tensor 'c' is stored as ") + name + ", which is not supported");
    }
    other = small();
    other.number("general.alignment", 3);
    CHECK(error_of(other.bytes()) == damaged("general.alignment is no power of two"));
  }

  TEST_CASE("values of another type are named") {
    const Gguf file = [] {
      GgufBytes bytes = small();
      bytes.text("a", "b");
      bytes.real("inf", std::numeric_limits<float>::infinity());
      static const std::string image = bytes.bytes();
      return parse(image);
    }();
    const auto error = [&](auto&& find) { return test::input_error_text(find); };
    CHECK(error([&] { file.find_int("a", 0, 9); }) ==
          "m.gguf: key 'a': expected an integer of at most 63 bits");
    CHECK(error([&] { file.strings("a"); }) == "m.gguf: key 'a': expected an array");
    CHECK(error([&] { file.find_bool("a"); }) == "m.gguf: key 'a': expected a boolean");
    CHECK(error([&] { file.find_double("inf"); }) == "m.gguf: key 'inf': expected a finite number");
    CHECK(error([&] { file.find_int("llama.block_count", 5, 9); }) ==
          "m.gguf: key 'llama.block_count': expected a number from 5 to 9, found 2");
  }

  TEST_CASE("parts are read together, whichever is named") {
    const test::TemporaryFolder folder;
    const auto part = [](uint32_t no, uint32_t count, const char* tensor) {
      GgufBytes file;
      if (no == 0) file.text("general.architecture", "llama");
      file.number("split.no", no);
      file.number("split.count", count);
      file.number("split.tensors.count", 2);
      if (tensor != nullptr) file.tensor(tensor, {4}, 0, std::string(16, tensor[0]));
      return file.bytes();
    };
    const auto name = [](int i) { return fmt::format("m-0000{}-of-00003.gguf", i); };
    const std::string where = folder.path().string() + "/";
    const auto error = [&] {
      return test::input_error_text([&] { Gguf::open(folder / name(2)); });
    };
    folder.write(name(1), part(0, 3, nullptr));
    folder.write(name(2), part(1, 3, "a"));
    CHECK(error() == where + name(2) + ": 1 of 3 parts missing: " + name(3));
    folder.write(name(3), part(2, 3, "b"));
    const Gguf file = Gguf::open(folder / name(2));
    CHECK(file.where() == where + name(1));
    CHECK(file.find_string("general.architecture") == "llama");
    std::string bytes(16, ' ');
    file.read(*file.find("b"), 0, std::as_writable_bytes(std::span(bytes)));
    CHECK(bytes == std::string(16, 'b'));
    folder.write(name(3), part(1, 3, "b"));
    CHECK(error() == where + name(3) + ": split.no is 1, expected 2 by the file's name");
    folder.write(name(3), part(2, 3, "a"));
    CHECK(error() == where + name(3) + ": is a damaged GGUF file: it has tensor 'a' twice");
    folder.write(name(3), part(2, 3, nullptr));
    CHECK(error() == where + name(1) + ": its parts have 1 tensors, but split.tensors.count is 2");
    folder.write(name(1), part(0, 4, nullptr));
    CHECK(error() == where + name(1) + ": split.count is 4, expected 3 by the file's name");
    folder.write(name(1), part(1, 3, nullptr));
    CHECK(error() == where + name(1) + ": split.no is 1, expected 0 by the file's name");
    folder.write(name(4), part(3, 3, nullptr));
    CHECK(test::input_error_text([&] { Gguf::open(folder / name(4)); }) ==
          where + name(4) + ": its name says that it is part 4 of 3");
    folder.write("one.gguf", part(0, 3, "a"));
    CHECK(test::input_error_text([&] { Gguf::open(folder / "one.gguf"); }) ==
          where + "one.gguf: is one of 3 parts by split.count, found 1");
  }
}
