#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "tensor/outbox.h"

using namespace tandem;

TEST_SUITE("tensor/outbox") {
  TEST_CASE("parts lie side by side up to the end, at equal places in both buffers") {
    alignas(Outbox::kAlignment) std::byte host[128], device[128];
    Outbox outbox(host, device, sizeof host);
    for (int turn = 0; turn < 2; ++turn) {
      outbox.clear();
      CHECK(outbox.all().host == host + 128);
      const Outbox::Part a = outbox.take(5), b = outbox.take(16), c = outbox.take(17);
      CHECK(a.host == host + 112);
      CHECK(b.host == host + 96);
      CHECK(c.host == host + 64);
      for (const Outbox::Part& part : {a, b, c}) CHECK(part.host - host == part.device - device);
      CHECK(outbox.taken() == 64);
      CHECK(outbox.all().host == c.host);
    }
    CHECK_THROWS_AS((void)outbox.take(65), Error);
  }
}
