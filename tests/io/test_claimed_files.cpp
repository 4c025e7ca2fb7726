#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "io/claimed_files.h"
#include "io/file.h"
#include "temporary_folder.h"

using namespace tandem;
using tandem::test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::usage);
    CHECK(e.hint_text() == "choose another output name");
    return e.what();
  }
  return "";
}

}  // namespace

TEST_SUITE("io/claimed_files") {
  TEST_CASE("what has been read is no output, under any name") {
    const TemporaryFolder folder;
    const std::string data = (folder / "data").string();
    folder.write("data", "x");
    CHECK(io::read_file(data) == "x");
    const std::string says = ": this run would write the file that it reads";
    CHECK(refusal([&] { io::claim_output(data); }) == data + says);
    fs::create_symlink("data", folder / "link");
    fs::create_hard_link(data, folder / "hard");
    for (const char* name : {"link", "hard"})
      CHECK(refusal([&] { io::claim_output(folder / name); }) ==
            (folder / name).string() + says + " as " + data);
    CHECK(refusal([&] { io::claim_output(folder / "new"); }) == "");
    folder.write("other", "x");
    CHECK(refusal([&] { io::claim_output(folder / "other"); }) == "");
  }

  TEST_CASE("an output is not read, but by the run that goes on with it") {
    const TemporaryFolder folder;
    const fs::path out = folder / "out", link = folder / "link";
    folder.write("out", "records");
    fs::create_symlink("out", link);
    io::claim_output(out);
    CHECK(refusal([&] { io::read_file(out); }) ==
          out.string() + ": this run would write the file that it reads");
    CHECK(refusal([&] { io::MappedFile file(link); }) ==
          out.string() + ": this run would write the file that it reads as " + link.string());
    CHECK(io::read_own_output(out) == "records");
    // A result that has taken the name is another file.
    folder.write("result", "new");
    fs::rename(folder / "result", out);
    CHECK(io::read_file(out) == "new");
  }
}
