#include <doctest/doctest.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "io/file.h"
#include "io/writer_lock.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using io::WriterLock;
namespace fs = std::filesystem;

namespace {

std::string refusal(const fs::path& target) {
  try {
    const WriterLock lock(target, {});
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::input);
    return e.what();
  }
  return "";
}

/// A process that holds a target's lock until it is killed.
class Holder {
 public:
  explicit Holder(const fs::path& target) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const WriterLock lock(target, {});
      [[maybe_unused]] const auto n = ::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    char c = 0;
    REQUIRE(::read(ready[0], &c, 1) == 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Holder() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

}  // namespace

TEST_SUITE("io/writer_lock") {
  TEST_CASE("one process at a time, known by its number, until it dies") {
    const TemporaryFolder folder;
    const fs::path file = folder / "out.jsonl", link = folder / "link";
    fs::create_symlink(file, link);
    {
      Holder holder(file);
      const std::string who =
          "is being written by process " + std::to_string(holder.pid()) + " on ";
      for (const fs::path& name : {file, link, fs::path(folder / "." / "out.jsonl")}) {
        CAPTURE(name);
        CHECK(refusal(name).find(who) != std::string::npos);
        CHECK(refusal(name).find(" since 20") != std::string::npos);
      }
      CHECK(refusal(folder / "other.jsonl") == "");
      holder.kill();
      CHECK(fs::exists(folder / "out.jsonl.lock"));  // which stops no other
      CHECK(refusal(file) == "");
    }
    CHECK_FALSE(fs::exists(folder / "out.jsonl.lock"));
    CHECK_FALSE(fs::exists(file));
  }

  TEST_CASE("a file that is no lock is neither written nor removed") {
    const TemporaryFolder folder;
    const fs::path target = folder / "package", lock = folder / "package.lock";
    const std::string says = lock.string() + ": is needed as the lock file of " + target.string() +
                             ", but was not written by tandem";
    for (const char* text : {"{}", "process of elimination\n", "process 1 on a since Z\nmore\n"}) {
      folder.write("package.lock", text);
      CHECK(refusal(target) == says);
      CHECK(io::read_file(lock) == text);
    }
    for (const char* named : {"victim", "nothing"}) {  // there, and not
      folder.write("victim", "whole");
      fs::remove(lock);
      fs::create_symlink(named, lock);
      CHECK(refusal(target) == says);
      CHECK(fs::is_symlink(lock));
    }
    CHECK(io::read_file(folder / "victim") == "whole");
    CHECK_FALSE(fs::exists(folder / "nothing"));
    fs::remove(lock);
    REQUIRE(::mkfifo(lock.c_str(), 0600) == 0);
    CHECK(refusal(target) == says);
    CHECK(fs::is_fifo(lock));
  }

  TEST_CASE("an empty file serves as a lock, and stays; one that a dead holder signed goes") {
    const TemporaryFolder folder;
    const fs::path target = folder / "out", lock = folder / "out.lock";
    folder.write("out.lock", "");
    {
      const WriterLock held(target, {});
      CHECK(fs::file_size(lock) == 0);
      CHECK(refusal(target) == target.string() + ": is being written by another process");
    }
    CHECK(fs::exists(lock));
    folder.write("out.lock", "process 1 on somewhere since 2026-01-01T00:00:00Z\n");
    {
      const WriterLock held(target, {});
      CHECK(refusal(target).find(std::to_string(::getpid())) != std::string::npos);
    }
    CHECK_FALSE(fs::exists(lock));
  }

  TEST_CASE("a folder, under its name with a slash, too") {
    const TemporaryFolder folder;
    const fs::path run = folder / "run";
    fs::create_directory(run);
    const WriterLock lock(run, {});
    CHECK(lock.why_open() == "");
    CHECK(refusal(run / "") != "");
    CHECK(refusal(run) != "");
  }

  TEST_CASE("a waiting writer starts once the lock is free, or is interrupted") {
    const TemporaryFolder folder;
    const fs::path file = folder / "out";
    Holder holder(file);
    std::atomic<int> noted = 0;
    std::atomic<bool> begun = false;
    std::thread waits([&] {
      const WriterLock lock(file, {.waits = true, .note = [&](const std::string&) { ++noted; }});
      begun = true;
    });
    while (noted == 0) std::this_thread::yield();
    CHECK_FALSE(begun);
    CHECK_THROWS_AS(WriterLock(file, {.waits = true, .interrupted = [] { return true; }}), Error);
    holder.kill();
    waits.join();
    CHECK(begun);
    CHECK(noted == 1);
  }

  TEST_CASE("of many that come and go two never have it at once") {
    const TemporaryFolder folder;
    const fs::path file = folder / "out";
    std::atomic<int> inside = 0, most = 0, turns = 0;
    std::vector<std::thread> all;
    for (int i = 0; i < 4; ++i)
      all.emplace_back([&] {
        for (int n = 0; n < 50;) {
          try {
            const WriterLock lock(file, {});
            most = std::max<int>(most, ++inside);
            ++turns;
            ++n;
            std::this_thread::yield();
            --inside;
          } catch (const Error&) {
            std::this_thread::yield();
          }
        }
      });
    for (std::thread& thread : all) thread.join();
    CHECK(turns == 200);
    CHECK(most == 1);
  }

  TEST_CASE("where no lock file can be made, it says why and stops no other") {
    const WriterLock lock("/no/such/folder/out", {});
    CHECK(lock.why_open() == "No such file or directory");
    CHECK(refusal("/no/such/folder/out") == "");
  }
}
