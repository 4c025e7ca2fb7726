// fuzz_corpus FOLDER: writes FOLDER/<target>/<n> for libFuzzer.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

#include "seeds.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: fuzz_corpus FOLDER\n"), 2;
  try {
    for (const std::string& target : tandem::fuzz::targets()) {
      const auto folder = std::filesystem::path(argv[1]) / target;
      std::filesystem::create_directories(folder);
      int n = 0;
      for (const std::string& seed : tandem::fuzz::seeds(target))
        std::ofstream(folder / ("seed-" + std::to_string(n++)), std::ios::binary) << seed;
      std::printf("%s\n", target.c_str());
    }
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "fuzz_corpus: %s\n", e.what()), 1;
  }
  return 0;
}
