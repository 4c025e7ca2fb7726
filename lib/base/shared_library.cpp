#include "base/shared_library.h"

#include <dlfcn.h>

#include <utility>

#include "base/error.h"

namespace tandem {

SharedLibrary::SharedLibrary(std::string name, std::string file, std::string remedy)
    : name_(std::move(name)),
      file_(std::move(file)),
      remedy_(std::move(remedy)),
      handle_(::dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr)
    throw make_error(ErrorKind::device, name_, "cannot be loaded: {}", ::dlerror()).hint(remedy_);
}

SharedLibrary::Function SharedLibrary::operator[](const char* symbol) const {
  void* const found = ::dlsym(handle_, symbol);
  if (found == nullptr)
    throw make_error(ErrorKind::device, name_, "{} has no symbol {}", file_, symbol).hint(remedy_);
  return {found};
}

}  // namespace tandem
