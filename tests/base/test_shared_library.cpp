#include "base/shared_library.h"

#include <doctest/doctest.h>

#include "error_text.h"

using namespace tandem;

namespace {

TEST_SUITE("base/shared_library") {
  TEST_CASE("functions are found by name, and what is missing is named with its remedy") {
    const SharedLibrary libc("the C library", "libc.so.6", "install it");
    int (*const absolute)(int) = libc["abs"];
    CHECK(absolute(-3) == 3);
    const auto missing_function = [&] { (void)libc["no_such_thing"]; };
    CHECK(test::error_text(missing_function) ==
          "the C library: libc.so.6 has no symbol no_such_thing");
    CHECK(test::kind_of(missing_function) == ErrorKind::device);
    CHECK(test::hint_text(missing_function) == "install it");
    const auto missing_file = [] { SharedLibrary("Nothing", "libnothing.so.7", "write it"); };
    CHECK(
        test::error_text(missing_file).starts_with("Nothing: cannot be loaded: libnothing.so.7: "));
    CHECK(test::kind_of(missing_file) == ErrorKind::device);
    CHECK(test::hint_text(missing_file) == "write it");
  }
}

}  // namespace
