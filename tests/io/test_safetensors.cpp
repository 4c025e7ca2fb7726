#include <doctest/doctest.h>

#include <cstring>

#include "error_text.h"
#include "io/safetensors.h"
#include "resident_file.h"
#include "safetensors_text.h"
#include "temporary_folder.h"

using namespace tandem;
using io::Safetensors;
using test::safetensors_image;

namespace {

Safetensors parse(std::string_view image) {
  return Safetensors::parse(test::as_bytes(image), "m.safetensors");
}

std::string error_of(std::string_view image) {
  return test::input_error_text([&] { parse(image); });
}

/// Error of a header over `n_data` bytes of data.
std::string header_error(std::string_view header, size_t n_data) {
  return error_of(safetensors_image(header, std::string(n_data, 'x')));
}

}  // namespace

TEST_SUITE("io/safetensors") {
  TEST_CASE("tensors, metadata and order of a good file") {
    const std::string image = safetensors_image(
        R"({"b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]},"__metadata__":{"format":"pt"},)"
        R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
        R"("scalar":{"dtype":"F16","shape":[],"data_offsets":[12,14]},)"
        R"("none":{"dtype":"I64","shape":[0,3],"data_offsets":[14,14]}}   )",
        "abcdABCDEFGHxy");
    const Safetensors file = parse(image);
    CHECK(file.entries().size() == 4);
    CHECK(file.entries()[0].name == "a");
    CHECK(file.entries()[3].name == "none");
    CHECK(file.metadata().at("format") == "pt");
    CHECK(file.data_bytes() == 14);
    CHECK(file.find("c") == nullptr);
    const io::TensorView b = file.tensor("b");
    CHECK(b.dtype == DType::f32);
    CHECK(b.shape == io::Shape{1, 2});
    CHECK(std::memcmp(b.bytes.data(), "ABCDEFGH", 8) == 0);
    CHECK(b.bytes.size() == 8);
    CHECK(file.tensor("scalar").bytes.size() == 2);
    CHECK(file.tensor("none").bytes.empty());
    CHECK(test::input_error_text([&] { file.tensor("c"); }) ==
          "m.safetensors: tensor 'c' is missing");
  }

  TEST_CASE("other dtypes are refused only when they are used") {
    const std::string image =
        safetensors_image(R"({"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
                          R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},)"
                          R"("c":{"dtype":"Q9","shape":[7],"data_offsets":[5,6]},)"
                          R"("d":{"dtype":"F4","shape":[4],"data_offsets":[6,8]}})",
                          "01234567");
    const Safetensors file = parse(image);
    CHECK(file.tensor("b").dtype == DType::u8);
    CHECK(test::input_error_text([&] { file.tensor("a"); }) ==
          "m.safetensors: tensor 'a' has dtype 'F8_E4M3', expected one of F32, BF16, F16, I32, "
          "I64, U8");
    CHECK(test::input_error_text([&] { file.tensor("c"); }) ==
          "m.safetensors: tensor 'c' has dtype 'Q9', expected one of F32, BF16, F16, I32, I64, U8");
  }

  TEST_CASE("a header length that lies") {
    CHECK(error_of("") ==
          "m.safetensors: truncated: expected at least 8 bytes for the header length, found a file "
          "of 0 bytes");
    CHECK(error_of("1234567") ==
          "m.safetensors: truncated: expected at least 8 bytes for the header length, found a file "
          "of 7 bytes");
    std::string image = safetensors_image("{}", "");
    image[0] = 3;
    CHECK(error_of(image) ==
          "m.safetensors: truncated: the header ends at byte 11, the file has 10 bytes");
    image[0] = 1;
    CHECK(error_of(image).starts_with("m.safetensors (header):1:2: malformed JSON"));
    std::memcpy(image.data(), "\x01\xE1\xF5\x05\0\0\0\0", 8);  // 100,000,001
    CHECK(error_of(image) ==
          "m.safetensors: is not a safetensors file: the header length is 100000001 bytes, the "
          "limit 100000000");
    std::memset(image.data(), 0xFF, 8);
    CHECK(error_of(image).starts_with(
        "m.safetensors: is not a safetensors file: the header length is 18446744073709551615 "));
  }

  TEST_CASE("other formats under this name are told apart") {
    CHECK(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:0") ==
          "m.safetensors: is a Git LFS pointer, expected safetensors weights");
    CHECK(error_of(std::string("GGUF\3\0\0\0\0\0\0\0", 12)) ==
          "m.safetensors: is a GGUF file, expected safetensors");
    CHECK(error_of("PK\x03\x04 archive/data.pkl") ==
          "m.safetensors: is a PyTorch pickle file, expected safetensors");
  }

  TEST_CASE("a header that is not of the form") {
    CHECK(header_error("[]", 0) ==
          "m.safetensors: header: expected an object, found an array of 0 items");
    CHECK(header_error(R"({"a":1})", 0) ==
          "m.safetensors: tensor 'a': expected an object, found the number 1");
    CHECK(header_error(R"({"a":{}})", 0) ==
          "m.safetensors: tensor 'a': key 'dtype' is missing, expected a string");
    CHECK(header_error(R"({"a":{"dtype":"F32"}})", 0) ==
          "m.safetensors: tensor 'a': key 'shape' is missing, expected an array");
    CHECK(header_error(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8) ==
          "m.safetensors: tensor 'a': key 'shape': expected an integer >= 0, found the number 2.0");
    CHECK(header_error(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", 8) ==
          "m.safetensors: tensor 'a': key 'shape': expected an integer >= 0, found the number -1");
    CHECK(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8) ==
          "m.safetensors: tensor 'a': key 'data_offsets': expected [begin, end], found an array of "
          "1 item");
    CHECK(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8) ==
          "m.safetensors: tensor 'a': data_offsets [8, 0] end before they begin");
    CHECK(header_error(R"({"__metadata__":{"k":1}})", 0) ==
          "m.safetensors: __metadata__: key 'k': expected a string, found the number 1");
    CHECK(header_error(R"({"__metadata__":3})", 0) ==
          "m.safetensors: key '__metadata__': expected an object, found the number 3");
    CHECK(header_error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                       1) == "m.safetensors (header):1:54: key 'a' appears twice");
  }

  TEST_CASE("a shape that does not match the bytes") {
    CHECK(header_error(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})", 20) ==
          "m.safetensors: tensor 'a': shape [2,3] of F32 needs 24 bytes, data_offsets span 20");
    CHECK(header_error(
              R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0) ==
          "m.safetensors: tensor 'a': shape [4294967296,4294967296] of F32 needs 2^61 bytes or "
          "more, or a fraction of a byte");
    CHECK(header_error(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2) ==
          "m.safetensors: tensor 'a': shape [3] of F4 needs 2^61 bytes or more, or a fraction of a "
          "byte");
  }

  TEST_CASE("a layout that lies") {
    const std::string a = R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
    CHECK(header_error("{" + a + "}", 7) ==
          "m.safetensors: truncated: the header promises 8 bytes of data, the file holds 7");
    CHECK(header_error("{" + a + "}", 9) ==
          "m.safetensors: 1 bytes after the last tensor belong to no tensor");
    CHECK(header_error("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})", 10) ==
          "m.safetensors: tensors 'a' and 'b' overlap: bytes [0, 8] and [6, 10]");
    CHECK(header_error("{" + a + R"(,"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8) ==
          "m.safetensors: tensors 'a' and 'b' overlap: bytes [0, 8] and [0, 8]");
    CHECK(header_error("{" + a + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[10,12]}})",
                       12) == "m.safetensors: 2 bytes before tensor 'b' belong to no tensor");
    CHECK(header_error("{}", 3) ==
          "m.safetensors: 3 bytes after the last tensor belong to no tensor");
  }

  TEST_CASE("a file on disk stays readable after its pages are dropped") {
    const test::TemporaryFolder folder;
    const std::string data(1 << 16, 'q');
    const auto path =
        folder.write("m.safetensors",
                     safetensors_image(
                         R"({"a":{"dtype":"U8","shape":[65536],"data_offsets":[0,65536]}})", data));
    const Safetensors file = Safetensors::open(path);
    const Safetensors copy = file;  // shares the mapping
    const io::TensorView a = copy.tensor("a");
    CHECK(std::memcmp(a.bytes.data(), data.data(), data.size()) == 0);
    file.drop_pages();
    CHECK(std::memcmp(a.bytes.data(), data.data(), data.size()) == 0);
    CHECK(test::input_error_text([&] { Safetensors::open(folder / "none"); }) ==
          (folder / "none").string() + ": cannot open: No such file or directory");
  }

  TEST_CASE("reading copies bytes and makes none of the mapping resident") {
    const test::TemporaryFolder folder;
    std::string data(1 << 20, 0);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 31 + i / 256);
    const std::string image = safetensors_image(
        R"({"a":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]}})", data);
    const auto path = folder.write("m.safetensors", image);
    const Safetensors file = Safetensors::open(path), in_memory = parse(image);
    CHECK(test::resident_bytes_of(path) == 0);
    const std::string expected = data.substr(70'001, 300'000);
    for (const Safetensors& f : {file, in_memory}) {
      std::string out(300'000, 0);
      f.read(f.tensor("a"), 70'001, std::as_writable_bytes(std::span(out)));
      CHECK(out == expected);
      f.read(f.tensor("a"), 1 << 20, {});  // nothing, at the end
    }
    CHECK(test::resident_bytes_of(path) == 0);
    const auto bytes = file.tensor("a").bytes;
    CHECK(std::memcmp(bytes.data() + 70'001, expected.data(), expected.size()) == 0);
    CHECK(test::resident_bytes_of(path) >= 300'000);
    file.drop_pages();
    CHECK(test::resident_bytes_of(path) == 0);
  }

  TEST_CASE("reading a file that has become shorter or cannot be read") {
    const test::TemporaryFolder folder;
    const auto path = folder.write("f", std::string(10'000, 'f'));
    io::MappedFile opened(path), file;
    file = std::move(opened);
    std::string out(6'000, 0);
    const auto read = [&](size_t begin, size_t n, char* to) {
      return test::input_error_text([&] { file.read(file.bytes().subspan(begin, n), to); });
    };
    // Memory that cannot be written is the one failure that a test can bring about.
    CHECK(read(0, 1, nullptr) == path.string() + ": cannot read: Bad address");
    std::filesystem::resize_file(path, 5'000);
    CHECK(read(0, 5'000, out.data()) == "nothing thrown");
    CHECK(out == std::string(5'000, 'f') + std::string(1'000, 0));
    CHECK(read(4'000, 2'000, out.data()) ==
          path.string() + ": was truncated during the run: byte 5000 of 10000 is missing");
    CHECK(read(9'999, 1, out.data()) ==
          path.string() + ": was truncated during the run: byte 9999 of 10000 is missing");
    CHECK(test::hint_text([&] { file.read(file.bytes().last(1), out.data()); }) ==
          "do not change the file while a run reads it");
  }
}
