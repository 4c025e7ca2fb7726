#include "tandem/model.h"

#include <fmt/format.h>

#include "api/loaded.h"
#include "cli/search_path.h"
#include "cli/threads.h"
#include "decode/fit/placement.h"
#include "decode/suggested_sampling.h"
#include "recipe/fields.h"
#include "recipe/load.h"
#include "tensor/cuda.h"
#include "text/tokenizer.h"

namespace tandem {
namespace {

constexpr int64_t kLeastContext = 1024;  // least context that is tried to fit in memory
constexpr int kMostSessions = 4096;
constexpr int kReadRows = 32;  // rows that a forward of Session::read may have

/// Sets a section by its text: a kind, or a map.
void set_section(recipe::Node& tree, const std::string& key, const std::string& text,
                 const std::string& label) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return;
  const bool is_map = text[begin] == '{';
  recipe::apply_setting(tree, fmt::format("{}{}={}", key, is_map ? "" : ".kind", text), label);
}

/// errors   kind usage: a key that has no effect in the library, or that another option sets
void refuse_unused(const std::string& setting, const ModelOptions& options) {
  constexpr std::pair<const char*, const char*> kUnused[] = {
      {"model.path", "give the path to Model::open"},
      {"model.state", "call Model::restore"},
      {"run.device", "set ModelOptions::device"},
      {"run.context", "set ModelOptions::context"},
      {"run.batch", "set ModelOptions::sessions"},
      {"run.seed", "set Sampling::seed"},
      {"run.plan_for", "plan with --dry-run of the tools"},
      {"run.rank", "only the tools run on several ranks"},
      {"run.world_size", "only the tools run on several ranks"},
      {"run.rendezvous", "only the tools run on several ranks"},
      {"sampling", "set Sampling of a call"},
      {"output", "the program writes results"}};
  recipe::Node own;
  recipe::apply_setting(own, setting, "ModelOptions::set");
  const auto refuse = [&](const char* key, const char* hint) {
    if (own.find_path(key) != nullptr)
      throw usage_error("ModelOptions::set", "{} has no effect here", key).hint(hint);
  };
  for (const auto& [unused, hint] : kUnused) refuse(unused, hint);
  // A section that is a word has it as its kind.
  const auto refuse_kind = [&](const char* section, const char* hint) {
    const recipe::Node* node = own.find_path(section);
    const bool is_kind = node != nullptr && node->kind == recipe::Node::Kind::scalar;
    refuse(is_kind ? section : fmt::format("{}.kind", section).c_str(), hint);
  };
  if (!options.cache.settings.empty()) refuse_kind("cache", "set ModelOptions::cache");
  if (!options.draft.settings.empty()) refuse_kind("spec.draft", "set ModelOptions::draft");
}

speculate::GenerateRecipe recipe_of(const std::string& path, const ModelOptions& options) {
  recipe::Node tree;
  const auto literal = [&](const char* key, const std::string& value, const char* label) {
    recipe::merge(tree, recipe::nest(key, recipe::literal_node(value, label)));
  };
  literal("model.path", path, "Model::open");
  literal("run.device", options.device, "ModelOptions::device");
  set_section(tree, "cache", options.cache.settings, "ModelOptions::cache");
  set_section(tree, "spec.draft", options.draft.settings, "ModelOptions::draft");
  for (const std::string& setting : options.set) {
    refuse_unused(setting, options);
    recipe::apply_setting(tree, setting, "ModelOptions::set");
  }
  if (const recipe::Node* cache = tree.find_path("cache"); options.cache.policy && cache != nullptr)
    for (const recipe::Node::Entry& entry : cache->entries)
      if (entry.key != "dense_layers")
        throw usage_error("ModelOptions::cache", "a policy of the program does not use '{}'",
                          entry.key)
            .hint("leave it out, or leave the policy out");
  speculate::GenerateRecipe recipe;
  recipe::Field fields = recipe::fields_of(recipe);
  recipe::read_fields(fields, tree, cli::model_folders());
  recipe::check_inputs(fields, tree, cli::model_folders());
  if (options.context < 0)
    throw usage_error("ModelOptions::context", "expected at least 0, found {}", options.context);
  if (options.sessions < 1 || options.sessions > kMostSessions)
    throw usage_error("ModelOptions::sessions", "expected 1 to {}, found {}", kMostSessions,
                      options.sessions);
  if (decode::gpus_named(recipe.run.device) > 1)
    throw usage_error("ModelOptions::device", "expected one device, found {}", recipe.run.device)
        .hint("only the tools run on several GPUs");
  if (recipe.run.device.starts_with("cuda") && cuda::device_count() == 0)
    throw Error(ErrorKind::device, "ModelOptions::device", cuda::why_none())
        .hint("open the model with device cpu");
  if (options.context > 0) recipe.run.context = {options.context};
  recipe.run.batch = options.sessions;
  recipe.cache.policy = options.cache.policy;
  if (recipe.cache.policy) {
    recipe.cache.kind = recipe::CacheKind::topk;  // chooses from all keys
    if (tree.find_path("cache.dense_layers") == nullptr) recipe.cache.dense_layers = {};
  }
  if (recipe.spec.fastest)
    throw usage_error("spec.fastest", "is supported only by the tools").hint("name one draft");
  if (recipe.spec.shape.measures_acceptance())
    throw usage_error("spec.shape", "auto measures acceptance on a prompt, found none yet")
        .hint("name an acceptance vector with spec.shape.accept, or a tree");
  return recipe;
}

}  // namespace

LoadedModel::LoadedModel(const std::string& path, const ModelOptions& options)
    : notes(options.on_note),
      recipe(recipe_of(path, options)),
      generation(recipe, notes),
      on_round(options.on_round) {
  cli::use_threads(recipe.run.threads);
  if (!generation.pair().target().adapters.empty())
    throw usage_error("model.adapters", "named adapters are supported only by the tools")
        .hint("leave the name out to merge the adapter into the weights");
  decode::GenerateSpec how = spec_of({});
  if (generation.speculates()) generation.read_tree(how.sampler.rule);
  speculate::ModelPair& pair = generation.pair();
  context = pair.context();
  const auto size = [&] {
    generation.size({.batch = options.sessions,
                     .longest = context,
                     .total = context * options.sessions,
                     .to_read = context,
                     .prompts = options.sessions},
                    options.sessions, [&](decode::EngineSpec& spec) {
                      spec.max_extend_rows = std::max(spec.max_extend_rows, kReadRows);
                      spec.max_logit_rows = std::max(spec.max_logit_rows, kReadRows);
                    });
    return pair.limits().fits(pair.plan());
  };
  while (!size() && recipe.run.context.value == 0 && context >= 2 * kLeastContext) context /= 2;
  if (generation.speculates() && !recipe.spec.force) speculate::refuse_full_draft(recipe, pair);
  how.max_context = static_cast<int>(context);
  generation.load(how, {});
  way = generation.way({.on_round = [this](const speculate::RoundEvent& e) {
    if (on_round) on_round({e.seq, e.drafted, e.accepted, e.path});
  }});
}

decode::GenerateSpec LoadedModel::spec_of(const Sampling& how) const {
  if (how.max_tokens < 1)
    throw usage_error("Sampling::max_tokens", "expected at least 1, found {}", how.max_tokens)
        .hint("Session::append adds a prompt without an answer");
  recipe::Node tree;
  const auto set = [&](const char* key, const auto& value) {
    if (value)
      recipe::merge(tree,
                    recipe::nest(key, recipe::literal_node(fmt::format("{}", *value), "Sampling")));
  };
  set("max_tokens", std::optional(how.max_tokens));
  set("temperature", how.temperature);
  set("top_k", how.top_k);
  set("top_p", how.top_p);
  set("min_p", how.min_p);
  set("repetition_penalty", how.repetition_penalty);
  recipe::Sampling sampling;
  recipe::Field fields = recipe::fields_of(sampling);
  recipe::read_fields(fields, tree);
  sampling.stop = how.stop;
  recipe::Problems problems(tree);
  sampling.check(problems);
  problems.raise();
  const model::ModelConfig& config =
      generation.engines().target ? engine().config() : generation.pair().target().config;
  return decode::generate_spec(sampling, how.seed, 0, config, static_cast<int>(context));
}

const text::Tokenizer& LoadedModel::tokenizer() const {
  if (files().tokenizer) return *files().tokenizer;
  throw input_error(files().name, "text needs a tokenizer, but the model has none")
      .hint("use token ids");
}

std::vector<int32_t> LoadedModel::encode(std::string_view text, bool begins) const {
  return tokenizer().encode(text, {.add_bos = begins});
}

void LoadedModel::require_known(std::span<const int32_t> ids) const {
  const int vocab = engine().config().vocab_size;
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab)
      throw input_error("token ids", "expected ids from 0 to {}, found {}", vocab - 1, id)
          .hint("encode texts with the same model");
}

const text::ChatTemplate& LoadedModel::chat_template() {
  if (!written) written = decode::chat_template_of(files(), recipe.chat);
  return *written;
}

void LoadedModel::require_free() const {
  if (n_free() > 0) return;
  throw usage_error("Model", "expected at most {} session{} alive", recipe.run.batch,
                    recipe.run.batch == 1 ? "" : "s")
      .hint("open the model with more ModelOptions::sessions, or end a session first");
}

std::shared_ptr<SessionText> LoadedModel::add(std::shared_ptr<SessionText> text) {
  texts.insert(text);
  return text;
}

ModelTurn::ModelTurn(std::shared_ptr<LoadedModel> of, bool ends) : model_(std::move(of)) {
  LoadedModel& model = *model_;
  if (model.running.load() == std::this_thread::get_id()) {
    if (ends) return;
    throw usage_error("Model", "a callback or policy cannot use the model that calls it")
        .hint("use the model after the call");
  }
  lock_ = std::unique_lock(model.turn);
  model.running = std::this_thread::get_id();
  cli::use_threads(model.recipe.run.threads);
  if (const Exec& exec = model.engine().exec(); exec.on_gpu()) gpu_.emplace(exec.queue->device());
}

decode::GenerateEvents TokenPasser::events() {
  decode::GenerateEvents events;
  if (!to_) return events;
  events.on_token = [this](const decode::TokenEvent& e) {
    if (!stopped_) pass({e.seq, e.id, e.text, e.logprob});
  };
  events.on_finish = [this](int seq, decode::Finish, const std::string& rest) {
    if (!stopped_ && !rest.empty()) pass({.sequence = seq, .id = -1, .text = rest});
  };
  events.interrupted = [this] { return stopped_; };
  return events;
}

void TokenPasser::pass(const Token& token) {
  try {
    stopped_ = !to_(token);
  } catch (...) {
    thrown_ = std::current_exception();
    stopped_ = true;
  }
}

Finish finish_of(std::optional<decode::Finish> finish) {
  if (!finish) return Finish::stopped;
  switch (*finish) {
    case decode::Finish::length:
      return Finish::length;
    case decode::Finish::stop_id:
      return Finish::end;
    case decode::Finish::stop_string:
      return Finish::stop;
    case decode::Finish::context:
      return Finish::context;
  }
  return Finish::stopped;
}

Result result_of(const decode::Answer& answer) {
  return {.text = answer.text,
          .ids = answer.ids,
          .finish = finish_of(answer.finish),
          .prompt_tokens = answer.report.prompt_tokens,
          .steps = answer.report.decode_steps,
          .prefill_s = answer.report.prefill_s,
          .decode_s = answer.report.decode_s};
}

Cache::Cache(std::shared_ptr<Policy> own, std::string text)
    : settings(std::move(text)), policy(std::move(own)) {
  if (!policy) throw usage_error("Cache", "expected a policy, found a null pointer");
}

Model::Model(std::shared_ptr<LoadedModel> loaded) : loaded_(std::move(loaded)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::open(const std::string& path, const ModelOptions& options) {
  return Model(std::make_shared<LoadedModel>(path, options));
}

const std::shared_ptr<LoadedModel>& Model::loaded() const {
  if (loaded_) return loaded_;
  throw usage_error("Model", "the model was moved to another object").hint("use that object");
}

Session Model::session() {
  const ModelTurn turn(loaded());
  loaded_->require_free();
  auto text = std::make_shared<SessionText>(
      std::make_unique<decode::Session>(loaded_->engine(), loaded_->way.decoder()));
  return Session(std::make_unique<OpenSession>(loaded_, loaded_->add(std::move(text))));
}

Session Model::restore(const std::filesystem::path& file) {
  const ModelTurn turn(loaded());
  loaded_->require_free();
  const decode::SavedState state =
      decode::open_state(file, loaded_->files(), loaded_->generation.pair().compute());
  if (std::ssize(state.tokens) > context())
    throw input_error(file.string(), "has {} tokens, but a session has room for {}",
                      state.tokens.size(), context())
        .hint("raise ModelOptions::context");
  auto text = std::make_shared<SessionText>(
      std::make_unique<decode::Session>(loaded_->engine(), loaded_->way.decoder(), state));
  return Session(std::make_unique<OpenSession>(loaded_, loaded_->add(std::move(text))));
}

std::vector<Result> Model::generate(std::span<const std::string> prompts, const Sampling& how,
                                    const OnToken& on_token) {
  const ModelTurn turn(loaded());
  loaded_->require_free();
  std::vector<decode::Request> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    requests.push_back({.tokens = loaded_->encode(prompts[i], true)});
    const auto n = std::ssize(requests.back().tokens);
    if (n == 0 || n >= context())
      throw input_error(fmt::format("prompt {}", i), "expected 1 to {} tokens, found {}",
                        context() - 1, n)
          .hint("raise ModelOptions::context, or shorten the prompt");
  }
  decode::GenerateSpec spec = loaded_->spec_of(how);
  spec.max_active = loaded_->n_free();
  std::vector<decode::Answer> answers(prompts.size());
  TokenPasser passer(on_token);
  const decode::GenerateEvents shown = passer.events();
  decode::GenerateEvents events = shown;
  events.on_prompt = [&](int seq, int64_t n) {
    answers[static_cast<size_t>(seq)].report.prompt_tokens = n;
  };
  events.on_token = [&](const decode::TokenEvent& e) {
    decode::Answer& answer = answers[static_cast<size_t>(e.seq)];
    answer.ids.push_back(e.id);
    answer.text += e.text;
    if (shown.on_token) shown.on_token(e);
  };
  events.on_finish = [&](int seq, decode::Finish finish, const std::string& rest) {
    decode::Answer& answer = answers[static_cast<size_t>(seq)];
    answer.finish = finish;
    answer.text += rest;
    if (shown.on_finish) shown.on_finish(seq, finish, rest);
  };
  decode::GenerateReport report;
  try {
    decode::generate(loaded_->engine(), loaded_->way.decoder(), requests, spec, events, report);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted) throw;
  }
  passer.rethrow();
  std::vector<Result> results;
  for (decode::Answer& answer : answers) {
    answer.report.decode_steps = report.decode_steps;
    answer.report.prefill_s = report.prefill_s;
    answer.report.decode_s = report.decode_s;
    results.push_back(result_of(answer));
  }
  return results;
}

std::vector<int32_t> Model::encode(std::string_view text, bool begins) const {
  return loaded()->encode(text, begins);
}

std::string Model::decode(std::span<const int32_t> ids) const {
  const LoadedModel& model = *loaded();
  model.require_known(ids);
  return model.tokenizer().decode(ids);
}

Sampling Model::suggested_sampling() const {
  const recipe::Sampling s = decode::suggested_sampling(loaded()->files().folder);
  return {.temperature = s.temperature,
          .top_k = s.top_k,
          .top_p = s.top_p,
          .min_p = s.min_p,
          .repetition_penalty = s.repetition_penalty};
}

const std::string& Model::name() const { return loaded()->files().name; }
int Model::vocab() const { return loaded()->engine().config().vocab_size; }
int64_t Model::context() const { return loaded()->context; }

}  // namespace tandem
