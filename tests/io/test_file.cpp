#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "error_text.h"
#include "io/file.h"
#include "temporary_folder.h"

using namespace tandem;
using tandem::test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

/// Asks `interrupted` while reading waits.
class InterruptedBy {
 public:
  explicit InterruptedBy(Interrupted interrupted) {
    io::interrupt_reading_by(std::move(interrupted));
  }
  ~InterruptedBy() { io::interrupt_reading_by({}); }
  InterruptedBy(const InterruptedBy&) = delete;
  InterruptedBy& operator=(const InterruptedBy&) = delete;
};

}  // namespace

TEST_SUITE("io/file") {
  TEST_CASE("a pipe in place of a file is refused at once, without a writer") {
    const TemporaryFolder folder;
    const fs::path pipe = folder / "config.json";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const std::string says = pipe.string() + ": is not a regular file";
    CHECK(test::input_error_text([&] { io::read_regular_file(pipe); }) == says);
    CHECK(test::input_error_text([&] { io::MappedFile file(pipe); }) == says);
  }

  TEST_CASE("a pipe that may be read is waited for until it is written, or an interruption") {
    const TemporaryFolder folder;
    const fs::path pipe = folder / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    std::atomic<int> asked = 0;
    {
      const InterruptedBy after([&] { return ++asked == 2; });
      CHECK_THROWS_AS(io::read_file(pipe), Error);
      CHECK(asked == 2);
    }
    asked = 0;
    const InterruptedBy never([&] { return ++asked < 0; });
    std::thread writer([&] {
      while (asked == 0) std::this_thread::yield();
      std::ofstream(pipe) << "late";
    });
    CHECK(io::read_file(pipe) == "late");
    writer.join();
  }
}
