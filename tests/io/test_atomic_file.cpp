#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "error_text.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "temporary_folder.h"

using namespace tandem;
using tandem::io::AtomicFile;

TEST_SUITE("io/atomic_file") {
  TEST_CASE("the final name appears at commit and not before") {
    const test::TemporaryFolder folder;
    {
      AtomicFile file(folder / "a.txt");
      file.write("one ");
      file.write("two");
      CHECK_FALSE(std::filesystem::exists(folder / "a.txt"));
      file.commit();
    }
    CHECK(io::read_file(folder / "a.txt") == "one two");
    CHECK(folder.n_files() == 1);
  }

  TEST_CASE("an abandoned file leaves the old one and no trace") {
    const test::TemporaryFolder folder;
    folder.write("a.txt", "old");
    { AtomicFile(folder / "a.txt").write("new"); }
    CHECK(io::read_file(folder / "a.txt") == "old");
    CHECK(folder.n_files() == 1);
  }

  TEST_CASE("two writers of one name, of one process number as two containers have it") {
    const test::TemporaryFolder folder;
    AtomicFile first(folder / "a.txt"), second(folder / "a.txt");
    first.write("first, ");
    second.write("second, ");
    first.write("and nothing else");
    second.write("alone");
    first.commit();
    CHECK(io::read_file(folder / "a.txt") == "first, and nothing else");
    second.commit();
    CHECK(io::read_file(folder / "a.txt") == "second, alone");
    CHECK(folder.n_files() == 1);
  }

  TEST_CASE("files that killed writers have left can be removed, and no others") {
    const test::TemporaryFolder folder;
    for (const char* name : {"a.txt", "a.txt.tmp-0123456789abcdef", "b.tmp-0123456789abcdef",
                             "a.txt.tmp-0123456789abcde", "a.txt.tmp-0123456789abcdeg", "c.tmp-"})
      folder.write(name, "x");
    io::remove_unfinished(folder.path());
    CHECK(folder.n_files() == 4);
    CHECK_FALSE(std::filesystem::exists(folder / "a.txt.tmp-0123456789abcdef"));
    CHECK_FALSE(std::filesystem::exists(folder / "b.tmp-0123456789abcdef"));
    io::remove_unfinished(folder / "none");
  }

  TEST_CASE("what a killed writer has left blocks nobody, and a planted link is not followed") {
    const test::TemporaryFolder folder;
    folder.write("victim.txt", "whole");
    const std::string own = fmt::format("a.txt.tmp-{}", ::getpid());
    std::filesystem::create_symlink("victim.txt", folder / own);
    for (int i = 0; i < 20; ++i) folder.write(fmt::format("a.txt.tmp-{:016x}", i), "left");
    AtomicFile file(folder / "a.txt");
    file.write("new");
    file.commit();
    CHECK(io::read_file(folder / "a.txt") == "new");
    CHECK(io::read_file(folder / "victim.txt") == "whole");
    CHECK(folder.n_files() == 3);
    CHECK(std::filesystem::is_symlink(folder / own));
  }

  TEST_CASE("of unfinished files only those of the same name go whose writer is gone") {
    const test::TemporaryFolder folder;
    const std::string digits = "0123456789abcdef";
    AtomicFile writes(folder / "a.txt");
    writes.write("slow");
    for (const char* name : {"a.txt.tmp-", "b.txt.tmp-", "a.txt.tmp-0"})
      folder.write(name + digits, "left");
    std::filesystem::create_symlink("b.txt.tmp-" + digits,
                                    folder / ("a.txt.tmp-1" + digits.substr(1)));
    { AtomicFile other(folder / "a.txt"); }
    CHECK_FALSE(std::filesystem::exists(folder / ("a.txt.tmp-" + digits)));
    CHECK(std::filesystem::exists(folder / ("b.txt.tmp-" + digits)));
    CHECK(std::filesystem::exists(folder / ("a.txt.tmp-0" + digits)));
    CHECK(folder.n_files() == 4);
    writes.commit();
    CHECK(io::read_file(folder / "a.txt") == "slow");
  }

  TEST_CASE("a file that has appeared meanwhile is kept, and so is the result") {
    const test::TemporaryFolder folder;
    for (const char* aside : {"a.txt.kept-1", "a.txt.kept-2"}) {
      AtomicFile file(folder / "a.txt", io::Existing::kept);
      file.write("result");
      folder.write("a.txt", "precious");
      CHECK(test::input_error_text([&] { file.commit(); }) ==
            (folder / "a.txt").string() +
                ": this file appeared during the run and was not overwritten: the result is in '" +
                (folder / aside).string() + "'");
      CHECK(io::read_file(folder / "a.txt") == "precious");
      CHECK(io::read_file(folder / aside) == "result");
      std::filesystem::remove(folder / "a.txt");
    }
    AtomicFile file(folder / "a.txt", io::Existing::kept);
    file.commit();
    CHECK(std::filesystem::exists(folder / "a.txt"));
    CHECK(folder.n_files() == 3);
  }

  TEST_CASE("a name that leaves no room for the temporary one") {
    const test::TemporaryFolder folder;
    const auto creates = [&](size_t n) { AtomicFile file(folder / std::string(n, 'x')); };
    const size_t longest = static_cast<size_t>(::pathconf(folder.path().c_str(), _PC_NAME_MAX));
    CHECK(test::hint_text([&] { creates(longest - 20); }) ==
          fmt::format(
              "choose a name of at most {} bytes: the temporary file's name is 21 bytes longer",
              longest - 21));
    CHECK(test::error_text([&] { creates(longest - 21); }) == "nothing thrown");
  }

  TEST_CASE("a link keeps pointing at the file that is written, there before or not") {
    const test::TemporaryFolder folder;
    std::filesystem::create_directory(folder / "sub");
    folder.write("old.txt", "old");
    std::filesystem::create_symlink("old.txt", folder / "near");
    std::filesystem::create_symlink("../near", folder / "sub/chain");
    std::filesystem::create_symlink(folder / "sub/new.txt", folder / "dangling");
    for (const char* link : {"sub/chain", "dangling"}) {
      AtomicFile file(folder / link);
      file.write("new");
      file.commit();
      CHECK(std::filesystem::is_symlink(folder / link));
    }
    CHECK(std::filesystem::is_symlink(folder / "near"));
    CHECK(io::read_file(folder / "old.txt") == "new");
    CHECK(io::read_file(folder / "sub/new.txt") == "new");
    std::filesystem::create_symlink("loop", folder / "loop");
    CHECK(test::input_error_text([&] { AtomicFile file(folder / "loop"); }) ==
          (folder / "loop").string() + ": is a symbolic link in a loop");
  }

  TEST_CASE("what is no regular file is never replaced") {
    const test::TemporaryFolder folder;
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    std::filesystem::create_directory(folder / "sub");
    std::filesystem::create_symlink("pipe", folder / "link");
    for (const char* name : {"pipe", "sub", "link"})
      CHECK(test::input_error_text([&] { AtomicFile file(folder / name); }) ==
            (folder / name).string() + ": is not a regular file and cannot be replaced");
    CHECK(std::filesystem::is_fifo(folder / "pipe"));
    CHECK(folder.n_files() == 3);
  }

  TEST_CASE("a folder that is not there") {
    const test::TemporaryFolder folder;
    const std::string path = (folder / "none/a.txt").string();
    CHECK(test::input_error_text([&] { AtomicFile file(path); }) ==
          path + ": cannot create: No such file or directory");
    CHECK(test::hint_text([&] { AtomicFile file(path); }) ==
          "the folder '" + (folder / "none").string() + "' must exist and be writable");
  }

  TEST_CASE("a disk that fills up") {
    // /dev/full cannot be renamed over, so the limit on file size stands for it: the first bytes go
    // through, then the write fails.
    const test::TemporaryFolder folder;
    const std::string path = (folder / "a.bin").string();
    rlimit old{};
    getrlimit(RLIMIT_FSIZE, &old);
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{1000, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string text = test::input_error_text([&] {
      AtomicFile file(path);
      file.write(std::string(4000, 'x'));
      file.commit();
    });
    setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, old_handler);
    CHECK(text == path + ": cannot write after 1000 bytes: File too large");
    CHECK(folder.n_files() == 0);
  }
}
