#include <doctest/doctest.h>

#include <fstream>

#include "error_text.h"
#include "io/atomic_folder.h"
#include "io/file.h"
#include "temporary_folder.h"

using namespace tandem;
using tandem::io::AtomicFolder;

TEST_SUITE("io/atomic_folder") {
  TEST_CASE("the final name appears at commit and not before") {
    const test::TemporaryFolder folder;
    for (const char* name : {"a", "b/"}) {
      AtomicFolder made(folder / name);
      std::ofstream(made.temporary() / "file") << "text";
      CHECK_FALSE(std::filesystem::exists(folder / name));
      made.commit();
      CHECK(io::read_file(folder / name / "file") == "text");
      const auto rights = std::filesystem::status(folder / name).permissions();
      std::filesystem::create_directory(folder / "as-usual");
      CHECK(rights == std::filesystem::status(folder / "as-usual").permissions());
      std::filesystem::remove(folder / "as-usual");
    }
    CHECK(folder.n_files() == 2);
  }

  TEST_CASE("an abandoned folder leaves no trace") {
    const test::TemporaryFolder folder;
    {
      AtomicFolder made(folder / "a");
      std::ofstream(made.temporary() / "file") << "text";
    }
    CHECK(folder.n_files() == 0);
  }

  TEST_CASE("what is there stays: at the start, and if it has come meanwhile") {
    const test::TemporaryFolder folder;
    folder.write("file", "old");
    std::filesystem::create_directory(folder / "taken");
    for (const char* name : {"file", "taken", "taken/"})
      CHECK(test::error_text([&] { AtomicFolder made(folder / name); }).find("already exists") !=
            std::string::npos);
    CHECK(test::error_text([&] {
            AtomicFolder made(folder / "none/a");
          }).find("cannot create the folder: ") != std::string::npos);
    {
      AtomicFolder late(folder / "late");
      std::filesystem::create_directory(folder / "late");
      CHECK(test::error_text([&] { late.commit(); }).find("already exists") != std::string::npos);
    }
    CHECK(folder.n_files() == 3);
  }
}
