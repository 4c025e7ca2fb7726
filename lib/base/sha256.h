#pragma once
#include <string>
#include <string_view>

namespace tandem {

/// SHA-256 (FIPS 180-4) of the bytes, as 64 lower-case hex digits. Identifies recipes and files;
/// own code because no library that is linked anyway offers it.
std::string sha256_hex(std::string_view bytes);

}  // namespace tandem
