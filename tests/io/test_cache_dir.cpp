#include <doctest/doctest.h>
#include <stdlib.h>

#include <optional>
#include <string>

#include "io/cache_dir.h"

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
  TEST_CASE("the variable says where, else the home folder") {
    const Variable home("HOME", "/home/someone");
    {
      const Variable dir("TANDEM_CACHE_DIR", "/fast/disk");
      CHECK(io::default_cache_dir() == "/fast/disk");
    }
    for (const char* unset : {static_cast<const char*>(nullptr), ""}) {
      const Variable dir("TANDEM_CACHE_DIR", unset);
      CHECK(io::default_cache_dir() == "/home/someone/.cache/tandem");
      const Variable no_home("HOME", unset);
      CHECK(io::default_cache_dir() == "/tmp/.cache/tandem");
    }
  }
}
