#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace tandem::text {

/// The classes of word patterns: \p{L}, \p{N}, \s, and all other characters.
enum class CharClass : uint8_t { other, letter, number, space };

/// The class of each character as Regex finds it, so that both always follow one version of
/// Unicode. A plane of 65,536 characters takes 64 KiB, when a text first needs it. Shared by
/// threads.
class CharClasses {
 public:
  /// The one table of the process.
  static const CharClasses& get();

  /// c        a Unicode character, at most U+10FFFF
  CharClass of(char32_t c) const {
    const Plane* plane = planes_[c >> 16].load(std::memory_order_acquire);
    return (plane != nullptr ? *plane : make_plane(c >> 16))[c & 0xFFFF];
  }

 private:
  using Plane = std::array<CharClass, 0x10000>;
  static constexpr size_t kPlanes = 17;

  const Plane& make_plane(char32_t number) const;

  mutable std::mutex mutex_;
  mutable std::array<std::unique_ptr<Plane>, kPlanes> owned_;
  mutable std::array<std::atomic<const Plane*>, kPlanes> planes_{};
};

}  // namespace tandem::text
