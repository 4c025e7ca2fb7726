// text_ids MODEL_FOLDER FILE [IDS_FILE]: the number of ids of a text, the seconds that finding them
// took and by how many MiB the process grew beyond the text; with a third argument the ids
// themselves, as 32-bit integers. For scripts/bench/tokenize-long.sh.
#include <fmt/format.h>

#include <fstream>

#include "base/clock.h"
#include "base/error.h"
#include "io/file.h"
#include "text/peak_memory.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) try {
  using namespace tandem;
  if (argc < 3) {
    fmt::print(stderr, "usage: text_ids MODEL_FOLDER FILE [IDS_FILE]\n");
    return 2;
  }
  const auto tokenizer = text::load_tokenizer(argv[1]);
  const std::string text = io::read_file(argv[2]);
  const test::PeakMemory memory;
  const Stopwatch watch;
  const auto ids = tokenizer->encode(text, {.add_bos = false, .parse_special = true});
  const double seconds = watch.seconds();
  fmt::print("{} ids  {:.2f} s  {:.0f} MiB\n", ids.size(), seconds,
             static_cast<double>(memory.grown()) / 0x1p20);
  if (argc > 3)
    std::ofstream(argv[3], std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()),
               static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
  return 0;
} catch (const tandem::Error& error) {
  fmt::print(stderr, "text_ids: error: {}\n", error.what());
  return 1;
}
