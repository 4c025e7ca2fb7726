#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "source_dir.h"
#include "tandem/c.h"
#include "temporary_folder.h"

namespace {

std::string model_path() {
  return (tandem::test::source_dir() / "recipes/models/tiny-2m").string();
}

struct Opened {
  explicit Opened(int sessions = 2) {
    const char* const set[] = {"model.compute=f32", nullptr};
    const tandem_options options{nullptr, nullptr, "cpu", 256, sessions, set};
    model = tandem_open(model_path().c_str(), &options);
    REQUIRE_MESSAGE(model != nullptr, tandem_error());
  }
  ~Opened() { tandem_close(model); }
  std::vector<int32_t> encode(const char* text) const {
    std::vector<int32_t> ids(static_cast<size_t>(tandem_encode(model, text, 1, nullptr, 0)));
    tandem_encode(model, text, 1, ids.data(), std::ssize(ids));
    return ids;
  }
  tandem_model* model;
};

int collect(void* user, int32_t, const char* text) {
  *static_cast<std::string*>(user) += text;
  return 1;
}

}  // namespace

TEST_SUITE("api/c") {
  TEST_CASE("generation, logits, forks and files through the C interface") {
    const Opened opened;
    const std::vector<int32_t> ids = opened.encode("The keeper climbed the stairs");
    tandem_session* session = tandem_begin(opened.model);
    REQUIRE(session != nullptr);
    std::string text;
    const tandem_sampling how{12, 0, 0, 0, 0};
    CHECK(tandem_generate(session, ids.data(), std::ssize(ids), &how, collect, &text) == 12);
    CHECK(!text.empty());
    CHECK(tandem_length(session) == std::ssize(ids) + 12);
    tandem_session* copy = tandem_fork(session);
    REQUIRE(copy != nullptr);
    CHECK(tandem_rewind(copy, std::ssize(ids) - 1) == 0);
    std::vector<float> logits(static_cast<size_t>(tandem_vocab(opened.model)));
    CHECK(tandem_read(copy, &ids.back(), 1, logits.data()) == 0);
    const tandem::test::TemporaryFolder folder;
    const std::string file = (folder / "state").string();
    CHECK(tandem_save(copy, file.c_str()) == 0);
    tandem_end(copy);
    tandem_session* saved = tandem_restore(opened.model, file.c_str());
    REQUIRE_MESSAGE(saved != nullptr, tandem_error());
    std::string again;
    CHECK(tandem_generate(saved, nullptr, 0, &how, collect, &again) == 12);
    CHECK(again == text);
    tandem_end(saved);
    tandem_end(session);
    std::string bytes(64, ' ');
    const int64_t n =
        tandem_decode(opened.model, ids.data() + 1, std::ssize(ids) - 1, bytes.data(), 64);
    CHECK(bytes.substr(0, static_cast<size_t>(n)).ends_with("The keeper climbed the stairs"));
  }

  TEST_CASE("failures leave a message and do not end the program") {
    CHECK(tandem_open("/no/such/folder", nullptr) == nullptr);
    CHECK(std::string(tandem_error()).find("/no/such/folder") != std::string::npos);
    CHECK(tandem_open(nullptr, nullptr) == nullptr);
    CHECK(std::string(tandem_error()).find("found NULL") != std::string::npos);
    CHECK(tandem_begin(nullptr) == nullptr);
    CHECK(tandem_length(nullptr) < 0);
    CHECK(tandem_read(nullptr, nullptr, 1, nullptr) < 0);
    tandem_session* session = nullptr;
    {
      const Opened opened;
      session = tandem_begin(opened.model);
      CHECK(tandem_append(session, nullptr, 3) < 0);
      CHECK(tandem_encode(opened.model, "The lamp", 1, nullptr, 8) < 0);
      const auto throws = [](void*, int32_t, const char*) -> int { throw 7; };
      const int32_t id = 5;
      CHECK(tandem_generate(session, &id, 1, nullptr, throws, nullptr) < 0);
      CHECK(std::string(tandem_error()) == "unknown exception");
      CHECK(tandem_chat(session, nullptr, nullptr, nullptr, nullptr) < 0);
    }
    CHECK(tandem_length(session) < 0);
    CHECK(std::string(tandem_error()).find("its model is gone") != std::string::npos);
    tandem_end(session);
  }
}
