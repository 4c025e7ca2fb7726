#include <doctest/doctest.h>
#include <stdlib.h>

#include <optional>
#include <string>

#include "io/cache_dir.h"
#include "io/file.h"
#include "temporary_folder.h"

using namespace tandem;

namespace {

/// Sets an environment variable for a while; null: unset.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = ::getenv(name)) old_ = old;
    set(value);
  }
  ~Variable() { set(old_ ? old_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) {
    if (value)
      ::setenv(name_, value, 1);
    else
      ::unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace

TEST_SUITE("io/cache_dir") {
  TEST_CASE("variables say where, the most special first; without them there is no folder") {
    const Variable home("HOME", "/home/someone"), caches("XDG_CACHE_HOME", "/var/caches");
    {
      const Variable dir("TANDEM_CACHE_DIR", "/fast/disk");
      CHECK(*io::default_cache_dir() == "/fast/disk");
      CHECK(io::cache_file("a.json") == "/fast/disk/a.json");
    }
    for (const char* unset : {static_cast<const char*>(nullptr), ""}) {
      const Variable dir("TANDEM_CACHE_DIR", unset);
      CHECK(*io::default_cache_dir() == "/var/caches/tandem");
      const Variable no_caches("XDG_CACHE_HOME", unset);
      CHECK(*io::default_cache_dir() == "/home/someone/.cache/tandem");
      const Variable relative("XDG_CACHE_HOME", "caches");
      CHECK(*io::default_cache_dir() == "/home/someone/.cache/tandem");
      const Variable no_home("HOME", unset);
      CHECK(!io::default_cache_dir());
      CHECK(io::cache_file("a.json").empty());
    }
  }

  TEST_CASE("a file is kept in a folder that is made for it, or else it is not kept") {
    const test::TemporaryFolder folder;
    CHECK(io::keep(folder / "a/b/c.json", "one"));
    CHECK(io::keep(folder / "a/b/c.json", "two"));
    CHECK(io::read_file(folder / "a/b/c.json") == "two");
    CHECK(io::why_not_kept() == "");
    CHECK(!io::keep(folder / "a/b/c.json/d.json", "three"));
    const std::string why = io::why_not_kept();
    CHECK(why == (folder / "a/b/c.json").string() + ": Not a directory");
    CHECK(!io::keep({}, "four"));
    CHECK(io::why_not_kept() == why);  // the first reason of a run is enough
  }
}
