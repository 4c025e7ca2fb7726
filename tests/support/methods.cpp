#include "support/runner.h"

#include <fmt/format.h>

namespace tandem::support {
namespace {

/// Policies that read little of the KV cache: sections of the target's or the draft's policy
/// follow.
std::string narrow(std::string_view section, std::string_view kind) {
  std::string text = fmt::format("{0}.kind={1} {0}.sinks=2 {0}.recent=8", section, kind);
  if (kind != "streaming" && kind != "snapkv" && kind != "retrieval" && kind != "verified")
    text += fmt::format(" {}.dense_layers=[]", section);
  if (kind == "topk" || kind == "oracle_sampling")
    text += fmt::format(" {}.topk.ratio=0.1", section);
  if (kind == "quest") text += fmt::format(" {0}.quest.ratio=0.1 {0}.quest.page=8", section);
  if (kind == "lsh") text += fmt::format(" {0}.lsh.bits=5 {0}.lsh.tables=20", section);
  if (kind == "hybrid") text += fmt::format(" {}.hybrid.exact=0.1", section);
  if (kind == "snapkv") text += fmt::format(" {0}.snapkv.budget=48 {0}.snapkv.window=16", section);
  if (kind == "retrieval") text += fmt::format(" {}.retrieval.budget=48", section);
  return text;
}

/// A policy with a budget beyond the text keeps the text; with a small one it runs.
void check_policy(Runner& r, std::string_view kind, std::string_view everything) {
  r.check_same_text("pig-generate", fmt::format("cache.kind={} {}", kind, everything));
  r.check_runs("pig-generate", narrow("cache", kind));
}

void check_self_draft(Runner& r, std::string_view kind) {
  r.check_same_text("sequoia-generate",
                    "spec.draft=self spec.gamma=3 " + narrow("draft.cache", kind));
}

/// The model drafts for itself, as a model of its own, under a window that makes some tokens wrong.
std::string model_draft(const Runner& r) {
  return fmt::format("draft.path={} spec.force=true {} ", r.model().string(),
                     narrow("draft.cache", "streaming"));
}

constexpr std::string_view kAllByContent = "cache.recent=8 cache.dense_layers=[]";

void check_sparse_draft(Runner& r, std::string_view kind) {
  r.check_same_text(
      "sequoia-generate",
      fmt::format("spec.draft=self draft.sparse.kind={} spec.gamma=3 spec.verify=match", kind));
}

}  // namespace

const std::vector<Method>& methods() {
  static const std::vector<Method> all = {
      {"plain decoding", [](Runner& r) { r.check_golden(); }},
      {"batches of prompts", [](Runner& r) { r.check_batch(); }},
      {"layer-wise prefill",
       [](Runner& r) {
         r.check_same_text("pig-generate", "run.prefill_order=layers run.prefill_chunk=64");
       }},
      {"saved states", [](Runner& r) { r.check_saved_state(); }},
      {"policy `streaming`",
       [](Runner& r) {
         check_policy(r, "streaming", "cache.sinks=0 cache.recent=4096");  // sinks pass windows
         r.check_runs("pig-generate", narrow("cache", "streaming") + " cache.prefill=windowed");
       }},
      {"policy `hybrid`",
       [](Runner& r) {
         check_policy(r, "hybrid",
                      fmt::format("{} cache.hybrid.exact=1 cache.hybrid.refine=1", kAllByContent));
       }},
      {"policy `lsh`",
       [](Runner& r) {
         check_policy(r, "lsh",
                      fmt::format("{} cache.lsh.bits=1 cache.lsh.tables=64 cache.lsh.min_hits=1",
                                  kAllByContent));
       }},
      {"policy `quest`",
       [](Runner& r) {
         check_policy(r, "quest", fmt::format("{} cache.quest.ratio=1", kAllByContent));
       }},
      {"policy `snapkv`", [](Runner& r) { check_policy(r, "snapkv", "cache.snapkv.budget=4096"); }},
      {"policy `retrieval`",
       [](Runner& r) { check_policy(r, "retrieval", "cache.retrieval.budget=4096"); }},
      {"policies `topk`, `oracle_sampling`",
       [](Runner& r) {
         check_policy(r, "topk", fmt::format("{} cache.topk.ratio=1", kAllByContent));
         r.check_runs("pig-generate", narrow("cache", "oracle_sampling"));  // always samples
       }},
      {"offloaded KV cache, `full`",
       [](Runner& r) {
         r.check_same_text("pig-generate", "cache.place=host");
         r.check_same_text("pig-generate", "cache.place=host cache.attend=gpu");
       }},
      {"offloaded KV cache, `hybrid` and `lsh`",
       [](Runner& r) {
         check_policy(r, "hybrid",
                      fmt::format("cache.place=host {} cache.hybrid.exact=1 cache.hybrid.refine=1",
                                  kAllByContent));
         check_policy(r, "lsh", "cache.place=host cache.recent=4096 cache.dense_layers=[]");
       }},
      {"draft model",
       [](Runner& r) { r.check_same_text("sequoia-generate", model_draft(r) + "spec.gamma=3"); }},
      {"token tree",
       [](Runner& r) {
         const std::string tree =
             (r.write("tree.json", R"({"format":"sequoia-tree/1","branch_counts":[2,2,0,1,0,0],)"
                                   R"("vector":{"method":"sequoia"}})"))
                 .string();
         r.check_same_text("sequoia-generate", model_draft(r) + "tree.path=" + tree);
       }},
      {"beams",
       [](Runner& r) {
         r.check_same_text("sequoia-generate",
                           model_draft(r) + "spec.gamma=3 spec.width=3 spec.verify=match");
       }},
      {"prompt lookup",
       [](Runner& r) { r.check_same_text("sequoia-generate", "spec.draft=ngram"); }},
      {"self-draft under a sparse policy",
       [](Runner& r) {
         for (const char* kind : {"streaming", "snapkv", "retrieval", "hybrid", "lsh", "quest"})
           check_self_draft(r, kind);
       }},
      {"self-draft, `verified`", [](Runner& r) { check_self_draft(r, "verified"); }},
      {"hierarchical speculation (TriForce)",
       [](Runner& r) {
         r.check_same_text("triforce-generate",
                           fmt::format("spec.draft=nested {} draft2.path={} spec.force=true "
                                       "draft2.cache.kind=streaming draft2.cache.recent=8",
                                       narrow("draft.cache", "retrieval"), r.model().string()));
       }},
      {"self-draft by a sparse FFN, `griffin`",
       [](Runner& r) {
         check_sparse_draft(r, "griffin");
         r.check_runs("sirius-generate", "spec.draft=self draft.sparse.kind=griffin");
       }},
      {"self-draft by a sparse FFN, `magnitude`",
       [](Runner& r) { check_sparse_draft(r, "magnitude"); }},
      {"self-draft by a sparse FFN, `cats`", [](Runner& r) { check_sparse_draft(r, "cats"); }},
      {"self-draft by a sparse FFN, `cats_threshold`", [](Runner& r) { r.check_thresholds(); }},
      {"weight offloading",
       [](Runner& r) {
         r.check_same_text("pig-generate", "model.offload=1");
         r.check_same_text("sequoia-generate", "model.offload=1 spec.draft=self spec.gamma=3 " +
                                                   narrow("draft.cache", "streaming"));
       }},
      {"resident FFN neurons",
       [](Runner& r) {
         r.check_same_text("sequoia-generate",
                           "model.offload=1 spec.draft=self spec.gamma=3 spec.verify=match "
                           "draft.sparse.kind=griffin run.batch=1");
       }},
      {"two ranks", [](Runner& r) { r.check_two_ranks(); }},
      {"training: S2FT", [](Runner& r) { r.check_training("s2ft"); }},
      {"training: LoRA", [](Runner& r) { r.check_training("lora"); }},
      {"training: DoRA", [](Runner& r) { r.check_training("dora"); }},
      {"training: SpFT", [](Runner& r) { r.check_training("spft"); }},
      {"training: all weights", [](Runner& r) { r.check_training("full"); }},
      {"adapters, merged: S2FT, LoRA, DoRA", [](Runner& r) { r.check_merged_adapters(); }},
      {"adapters by prompt", [](Runner& r) { r.check_named_adapters(); }}};
  return all;
}

}  // namespace tandem::support
