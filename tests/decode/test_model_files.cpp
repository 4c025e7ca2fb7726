#include <doctest/doctest.h>

#include "decode/model_files.h"
#include "error_text.h"
#include "generate_runs.h"
#include "io/file.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

TEST_SUITE("decode/model_files") {
  TEST_CASE("damaged files come with what to do about them, whatever is wrong") {
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
      CAPTURE(file);
      const TemporaryFolder folder;
      std::filesystem::copy(small_model("llama-3.1"), folder / "m");
      CHECK_NOTHROW(decode::open_model((folder / "m").string(), 0));
      for (const std::string text : {"[]", "{\"a\":", "\x02\0\0\0\0\0\0\0{}more"}) {
        std::filesystem::remove(folder / "m" / file);
        folder.write(std::string("m/") + file, text);
        const auto open = [&] { decode::open_model((folder / "m").string(), 0); };
        CHECK(input_error_text(open).find(file) != std::string::npos);
        CHECK(hint_text(open) != "");
      }
    }
  }

  TEST_CASE("no path at all") {
    const auto open = [] { decode::open_model("", 0); };
    CHECK(input_error_text(open) == "model.path: is empty, expected a model folder");
    CHECK(hint_text(open) != "");
  }
}
