#pragma once
#include <string>

namespace tandem {

/// A library that a process loads when it first needs it, so that it runs without where it does
/// not. It stays loaded.
class SharedLibrary {
 public:
  /// name     as errors call it
  /// file     its file name with the version, looked for where the system's loader looks
  /// remedy   where users get it
  /// errors   kind device: cannot be loaded
  SharedLibrary(std::string name, std::string file, std::string remedy);

  /// A function, to be kept in a pointer to its type.
  struct Function {
    void* address;
    template <class F>
    operator F*() const {
      return reinterpret_cast<F*>(address);
    }
  };
  /// errors   kind device: the library has no such function
  Function operator[](const char* symbol) const;

 private:
  std::string name_, file_, remedy_;
  void* handle_;
};

}  // namespace tandem
