#include "eval/policy_engines.h"

#include "decode/fit/load_engine.h"

namespace tandem::eval {

PolicyEngines::PolicyEngines(const decode::EngineSizer& sizer, const decode::ModelFiles& files,
                             const std::vector<NamedPolicy>& policies, const SpecOf& spec_of,
                             int batch)
    : sizer_(&sizer) {
  for (std::vector<int>& part : divide_among_engines(policies)) {
    std::vector<NamedPolicy> of_part;
    for (const int i : part) of_part.push_back(policies[static_cast<size_t>(i)]);
    std::string name = parts_.empty() ? std::string() : of_part.front().name;
    decode::EngineSpec spec = sizer.placed(spec_of(of_part));
    Part& added = parts_.emplace_back(Part{std::move(part), std::move(name), std::move(spec)});
    if (of_part.front().has_weights()) added.files = sizer.open_model(of_part.front().weights);
  }
  for (size_t i = 1; i < parts_.size(); ++i) {
    recipe::Cache& cache = parts_[i].spec.caches.front();
    if (!cache.is_hosted()) continue;
    const recipe::Cache asked = cache;
    parts_[i].hosted =
        decode::decide_hosted(sizer, files, asked, parts_[i].spec.max_tokens, batch,
                              [&](const recipe::Cache& decided, const decode::Savings& savings) {
                                cache = decided;
                                return plan_of(files, savings);
                              });
    cache = parts_[i].hosted->chosen().cache;
  }
  plan_ = sizer.save_memory(files.config, [&](const decode::Savings& savings) {
    for (Part& part : parts_) part.spec.savings = savings;
    return plan_of(files, savings);
  });
}

MemoryPlan PolicyEngines::plan_of(const decode::ModelFiles& files,
                                  const decode::Savings& savings) const {
  MemoryPlan all;
  for (const Part& part : parts_) {
    decode::EngineSpec spec = part.spec;
    spec.savings = savings;
    MemoryPlan own = decode::Engine::plan(part.files ? *part.files : files, spec);
    if (part.name.empty())
      all = std::move(own);
    else
      decode::add_engine(all, own, part.name);
  }
  return all;
}

MemoryPlan PolicyEngines::smallest_plan(const decode::ModelFiles& files) const {
  return plan_of(files,
                 {.host_embedding = true, .n_streamed = sizer_->most_streamed(files.config)});
}

std::vector<machine::HostedEngine> PolicyEngines::hosted(const decode::ModelFiles& files) const {
  std::vector<machine::HostedEngine> engines;
  for (const Part& part : parts_)
    if (part.hosted)
      engines.push_back({part.name, *part.hosted, decode::Engine::plan(files, part.spec)});
  return engines;
}

void PolicyEngines::load(const decode::RunContext& run) {
  std::shared_ptr<cuda::Queue> queue;  // all work in one order with the first
  for (Part& part : parts_) {
    part.engine = decode::load_engine(
        run, part.files ? std::move(*part.files) : sizer_->open_model(), part.spec, plan_, queue);
    if (!queue) queue = part.engine->queue();
  }
}

Panel PolicyEngines::panel() const {
  std::vector<Panel::Member> members;
  for (const Part& part : parts_) members.push_back({part.engine.get(), part.policies});
  return Panel(std::move(members));
}

}  // namespace tandem::eval
