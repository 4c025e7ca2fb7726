#pragma once
#include <string>

#include "base/error.h"

namespace tandem::test {

/// `where: message` of the Error of kind input that `body` throws; anything else is told as text.
template <class Body>
std::string input_error_text(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.kind() == ErrorKind::input ? e.what() : std::string("another kind: ") + e.what();
  } catch (const std::exception& e) {
    return std::string("another exception: ") + e.what();
  }
  return "nothing thrown";
}

/// `where: message` of the Error of any kind that `body` throws.
template <class Body>
std::string error_text(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing thrown";
}

/// The kind of the Error that `body` throws; internal if none.
template <class Body>
ErrorKind kind_of(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.kind();
  }
  return ErrorKind::internal;
}

/// The hint of the Error that `body` throws.
template <class Body>
std::string hint_text(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.hint_text();
  }
  return "nothing thrown";
}

}  // namespace tandem::test
