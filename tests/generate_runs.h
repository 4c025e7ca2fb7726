#pragma once
#include <map>

#include "decode/generate.h"
#include "engine_runs.h"

namespace tandem::test {

/// Everything that one call of generate reports, by sequence.
struct Generated {
  std::vector<Ids> ids;
  std::vector<std::string> text;
  std::vector<decode::Finish> finish;
  std::vector<std::vector<decode::TokenEvent>> events;
  decode::GenerateReport report;
};

/// decoder  null: the engine alone
inline Generated generate(decode::Engine& engine, const std::vector<decode::Request>& requests,
                          const decode::GenerateSpec& spec, decode::Decoder* decoder = nullptr) {
  Generated g;
  g.ids.resize(requests.size());
  g.text.resize(requests.size());
  g.finish.resize(requests.size());
  g.events.resize(requests.size());
  decode::GenerateEvents events;
  events.on_token = [&](const decode::TokenEvent& e) {
    const auto i = static_cast<size_t>(e.seq);
    g.ids[i].push_back(e.id);
    g.text[i] += e.text;
    g.events[i].push_back(e);
  };
  events.on_finish = [&](int seq, decode::Finish finish, const std::string& rest) {
    g.text[static_cast<size_t>(seq)] += rest;
    g.finish[static_cast<size_t>(seq)] = finish;
  };
  g.report = decoder != nullptr ? decode::generate(engine, *decoder, requests, spec, events)
                                : decode::generate(engine, requests, spec, events);
  return g;
}

inline decode::Request request(Ids tokens) {
  decode::Request r;
  r.tokens = std::move(tokens);
  return r;
}

inline int32_t argmax(const Row& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace tandem::test
