// The only file that includes CLI11.
#include "strait/cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "strait/base/errors.h"
#include "strait/base/version.h"
#include "strait/cli/completion.h"
#include "strait/cli/grammar.h"
#include "strait/kernel/product_choice.h"

namespace strait::cli {
namespace {

[[noreturn]] void refuse(const std::string& message, const std::string& flag) {
  ErrorPlace place;
  place.key = flag;
  throw UserError(message, place);
}

struct CaseKey {
  const char* name;
  bool whole_number;
  std::vector<std::string> choices;  // empty = any text
  const char* about;
};

struct Subject {
  const char* name;
  const char* about;
  const char* example;
  std::vector<CaseKey> keys;
};

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> table = {
      {"gemm",
       "Matrix products",
       "strait bench gemm --m 256 --n 768 --k 768 --dtype fp32 --threads 1",
       {{"m", true, {}, "rows of the result"},
        {"n", true, {}, "columns of the result"},
        {"k", true, {}, "length of the sums"},
        {"dtype", false, {"fp32", "bf16", "fp64"}, "element type"},
        {"threads", true, {}, "compute threads"},
        {"products", false, kernel::product_names(), "what multiplies bf16 and fp32"}}},
      {"step",
       "One training step",
       "strait bench step --model gpt2-124m --micro-batch-size 4 --context 64 --precision fp32 "
       "--json -",
       {{"model", false, {}, "model preset"},
        {"micro_batch_size", true, {}, "sequences"},
        {"context", true, {}, "tokens per sequence"},
        {"vocabulary", true, {}, "tokens; left out: 65 for nano-char, 50257 for others"},
        {"precision", false, {"fp32", "bf16", "fp64"}, "compute type"},
        {"threads", true, {}, "compute threads"},
        {"products", false, kernel::product_names(), "what multiplies bf16 and fp32"},
        {"breakdown", false, {"off", "on"}, "the time of every kernel against its bound"},
        {"peer_python",
         false,
         {},
         "the python whose PyTorch is the peer; left out: /usr/bin/python3"}}},
      {"codec",
       "Codecs on one core",
       "strait bench codec --codec int8/2048 --direction encode --elements 134217728",
       {{"codec", false, {}, "codec; all kinds when it is left out"},
        {"direction",
         false,
         {"encode", "decode", "decode-add"},
         "what is timed; all when left out"},
        {"elements", true, {}, "length of the buffer"},
        {"dtype", false, {"fp32", "bf16", "fp64"}, "element type"}}},
      {"collective",
       "Collectives between ranks",
       "strait bench collective --operation all-gather --ranks 2 --bytes 67108864",
       {{"operation",
         false,
         {"all-gather", "reduce-scatter", "all-reduce", "all-to-all", "broadcast"},
         "collective operation"},
        {"backend", false, {"threads", "mpi"}, "how ranks run"},
        {"ranks", true, {}, "number of ranks"},
        {"bytes", true, {}, "size of the whole vector"},
        {"dtype", false, {"fp32", "fp64"}, "element type"},
        {"codec", false, {"none"}, "codec of the messages"}}},
      {"checkpoint",
       "Saving and loading a checkpoint",
       "strait bench checkpoint --ranks 2 --bytes 268435456 --folder runs",
       {{"ranks", true, {}, "threads that save and load together"},
        {"bytes", true, {}, "size of the checkpoint"},
        {"folder", false, {}, "where to write: a folder on the disk that is meant"}}},
  };
  return table;
}

const Subject* find_subject(const std::string& name) {
  for (const Subject& subject : subjects())
    if (name == subject.name) return &subject;
  return nullptr;
}

std::string flag_of(const std::string& key) {
  std::string flag = "--" + key;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

/// Value of a whole number >= 1, or nothing.
std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, number);
  if (code != std::errc() || stop != end || number < 1) return std::nullopt;
  return number;
}

/// Builds the CLI11 description of the commands that are named, around one Command; of others only
/// what a list of them tells, where help is asked for. Building all takes ten times as long as
/// reading a command line.
class Grammar {
 public:
  Grammar(const std::vector<std::string>& available, const std::vector<std::string>& words,
          Command& command)
      : app_("Strait trains large models on computers joined by narrow links.", "strait"),
        words_(words),
        help_(std::any_of(words.begin(), words.end(), asks_for_help)),
        command_(command) {
    app_.footer(
        "Example:\n  strait train run.toml --ranks 2\nstrait COMMAND --help tells more about a "
        "command.");
    app_.set_version_flag("--version", fmt::format("strait {} ({})", version(), commit()));
    add_json(app_);
    app_.allow_extras();
    app_.require_subcommand(0, 1);
    const auto among = [&](const std::string& name) {
      return std::find(available.begin(), available.end(), name) != available.end();
    };
    const auto given = std::find_if(words.begin(), words.end(), among);
    for (const Row& row : kRows) {
      if (!among(row.name)) continue;
      names_.push_back(row.name);
      if ((given != words.end() && *given == row.name) || (help_ && is_named(row.name)))
        add_command(row);
      else if (help_)
        app_.add_subcommand(row.name, row.about);
    }
  }

  CLI::App& app() { return app_; }
  const CLI::App& app() const { return app_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  struct Row {
    const char *name, *about, *example;
    void (Grammar::*add)(CLI::App* sub);
  };
  static const Row kRows[12];

  static bool asks_for_help(const std::string& word) {
    return word.starts_with("-h") || word.starts_with("--help");
  }
  bool is_named(const std::string& word) const {
    return std::find(words_.begin(), words_.end(), word) != words_.end();
  }
  void add_command(const Row& row) {
    CLI::App* sub = app_.add_subcommand(row.name, row.about);
    sub->footer(fmt::format("Example:\n  {}", row.example));
    sub->allow_extras();
    add_json(*sub);
    (this->*row.add)(sub);
  }
  void add_json(CLI::App& app) {
    app.add_option("--json", command_.json, "Write the result as JSON to FILE, or to stdout for -")
        ->type_name("FILE|-");
  }
  void add_path(CLI::App* sub, const char* name, const char* about) {
    sub->add_option(name, command_.path, about)->required()->type_name("PATH");
  }
  CLI::Option* add_ranks(CLI::App* sub, const char* about) {
    return sub->add_option("--ranks", command_.ranks, about)->type_name("N");
  }
  void add_sets(CLI::App* sub) {
    sub->add_option("--set", command_.sets, "Override a key of the run file; may be given again")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
  }
  void add_cluster(CLI::App* sub) {
    sub->add_option("--cluster", command_.cluster,
                    "Cluster preset or cluster file instead of the run file's")
        ->type_name("PRESET|FILE");
  }

  void add_train(CLI::App* sub) {
    add_path(sub, "RUN.toml", "Run file");
    add_ranks(sub, "Ranks, as threads of this process");
    add_sets(sub);
  }
  void add_evaluate(CLI::App* sub) {
    add_path(sub, "CHECKPOINT", "Checkpoint, run folder, or RUN_DIR/best");
    sub->add_option("--set", command_.sets,
                    "A key of [data], evaluation.batches or train.micro_batch_size, over those of "
                    "the run that saved it; may be given again")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
  }
  void add_sample(CLI::App* sub) {
    add_path(sub, "CHECKPOINT", "Checkpoint, run folder, or RUN_DIR/best");
    SampleArguments& sample = command_.sample;
    sub->add_option("--prompt", sample.prompt, "Text to continue")->type_name("TEXT");
    sub->add_option("--tokens", sample.tokens, "Number of new tokens")
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--temperature", sample.temperature, "0 = always the most likely token")
        ->type_name("X")
        ->capture_default_str();
    sub->add_option("--top-k", sample.top_k, "Choose among the K most likely; 0 = all")
        ->type_name("K")
        ->capture_default_str();
    sub->add_option("--top-p", sample.top_p,
                    "Choose among the most likely of total probability P; 1 = all")
        ->type_name("P")
        ->capture_default_str();
    sub->add_option("--seed", sample.seed, "Seed of the choices")
        ->type_name("N")
        ->capture_default_str();
  }
  void add_verify(CLI::App* sub) {
    add_path(sub, "RUN.toml", "Run file");
    add_ranks(sub, "Ranks; default 1");
    add_sets(sub);
    sub->add_flag("--print", command_.print, "Print the programs");
  }
  void add_simulate(CLI::App* sub) {
    add_path(sub, "RUN.toml", "Run file");
    add_ranks(sub, "Ranks; default 1");
    add_sets(sub);
    add_cluster(sub);
    sub->add_option("--trace", command_.trace, "Write a Chrome trace")->type_name("FILE");
    sub->add_option("--plot", command_.plot, "Write a picture of the timeline")->type_name("FILE");
  }
  void add_plan(CLI::App* sub) {
    add_path(sub, "RUN.toml", "Run file");
    add_ranks(sub, "Ranks")->required();
    add_cluster(sub);
    sub->add_option("-o,--output", command_.output, "Write the run file of the first candidate")
        ->type_name("FILE");
    add_sets(sub);
  }
  void add_probe(CLI::App* sub) {
    sub->add_option("RUN.toml", command_.path,
                    "Run file: times blocks of its model with its micro-batch")
        ->type_name("PATH");
    sub->add_option("-o,--output", command_.output, "Cluster file to write")
        ->required()
        ->type_name("FILE");
    add_ranks(sub, "Ranks to measure between; default: one for each available core");
    add_sets(sub);
  }
  void add_bench(CLI::App* sub) {
    sub->require_subcommand(0, 1);
    for (const Subject& subject : subjects()) {
      const bool named = is_named(subject.name);
      if (!named && !help_) continue;
      CLI::App* below = sub->add_subcommand(subject.name, subject.about);
      if (!named) continue;
      below->footer(fmt::format("Example:\n  {}", subject.example));
      below->allow_extras();
      add_json(*below);
      for (const CaseKey& key : subject.keys) {
        const std::string about =
            key.choices.empty() ? key.about
                                : fmt::format("{} ({})", key.about, fmt::join(key.choices, ", "));
        below
            ->add_option_function<std::string>(
                flag_of(key.name),
                [this, name = key.name](const std::string& value) {
                  command_.case_keys[name] = value;
                },
                about)
            ->type_name(key.whole_number ? "N" : "TEXT");
      }
    }
  }
  void add_inspect(CLI::App* sub) {
    add_path(sub, "CHECKPOINT|RUN_DIR", "Checkpoint, run folder, or RUN_DIR/best");
  }
  void add_convert(CLI::App* sub) {
    add_path(sub, "FROM",
             "Checkpoint, run folder, .safetensors file of Strait's, or Hugging Face folder; or "
             "data: text, "
             "JSON-lines, llm.c shards, Megatron pairs");
    sub->add_option("TO", command_.output, "A .safetensors file, or a folder; must not exist")
        ->required()
        ->type_name("PATH");
    sub->add_option(
           "--to", command_.form,
           "hf, checkpoint or safetensors; of data llm.c or megatron. Default: what the name TO "
           "ends "
           "with, else hf from a checkpoint, llm.c from data and checkpoint from anything else")
        ->type_name("FORM");
    sub->add_option("--shard-tokens", command_.shard_tokens,
                    "llm.c: tokens per shard; default 100000000")
        ->type_name("N");
    sub->add_option("--set", command_.sets,
                    "Data: a key of [data], as data.tokenizer=bpe:32000; may be given again")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
  }
  void add_completion(CLI::App* sub) {
    sub->add_option("SHELL", command_.subject,
                    fmt::format("{}", fmt::join(completion_shells(), ", ")))
        ->required()
        ->type_name("SHELL");
  }
  void add_report(CLI::App* sub) {
    sub->add_option("RUN_DIR", command_.paths, "Run folder; several are compared")
        ->required()
        ->type_name("PATH");
    sub->add_option("-o,--output", command_.output,
                    "Folder for page and pictures instead of the run folder; is made")
        ->type_name("FOLDER");
  }

  CLI::App app_;
  const std::vector<std::string>& words_;
  const bool help_;
  Command& command_;
  std::vector<std::string> names_;
};

const Grammar::Row Grammar::kRows[] = {
    {"train", "Train a model", "strait train run.toml --ranks 2 --set data.path=book.txt",
     &Grammar::add_train},
    {"evaluate", "Validation loss of a checkpoint",
     "strait evaluate runs/my-run-001 --set data.path=book.txt --set "
     "data.validation_share=0.5",
     &Grammar::add_evaluate},
    {"sample", "Generate text from a checkpoint",
     "strait sample runs/my-run-001 --prompt \"Once\" --tokens 100", &Grammar::add_sample},
    {"verify", "Prove the run file's programs correct", "strait verify run.toml --ranks 4 --print",
     &Grammar::add_verify},
    {"simulate", "Replay the run file's programs on a virtual clock",
     "strait simulate run.toml --ranks 64 --cluster frontier --trace trace.json --set "
     "train.global_batch_size=512",
     &Grammar::add_simulate},
    {"plan", "Rank the ways to run a model on a cluster",
     "strait plan run.toml --ranks 64 --cluster perlmutter --set "
     "train.global_batch_size=512\n  strait plan run.toml --ranks 2 -o best.toml",
     &Grammar::add_plan},
    {"probe", "Measure this machine into a cluster file",
     "strait probe -o cluster.toml\n  strait probe run.toml --ranks 2 -o cluster.toml",
     &Grammar::add_probe},
    {"bench", "Measure, verify and compare with the bound",
     "strait bench gemm --m 256 --n 768 --k 768\n  strait bench step --help", &Grammar::add_bench},
    {"inspect", "Show and check a checkpoint or a run folder", "strait inspect runs/my-run-001",
     &Grammar::add_inspect},
    {"report", "Tables, pictures and one HTML page of a run, or runs compared",
     "strait report runs/my-run-001\n  strait report runs/my-run-001 "
     "runs/my-run-001 -o comparison",
     &Grammar::add_report},
    {"convert", "Turn a model, or data, from one form of storing it into another",
     "strait convert runs/my-run-001 my-gpt2\n  strait convert my-gpt2 "
     "runs/gpt2 --to checkpoint\n  strait convert books.jsonl.gz shards --to llm.c --set "
     "data.tokenizer=bpe:32000",
     &Grammar::add_convert},
    {"completion", "Print completion for a shell", "strait completion bash",
     &Grammar::add_completion},
};

/// The command, and below it the subject, that was recognised last.
CLI::App* active(CLI::App& app) {
  CLI::App* current = &app;
  while (!current->get_subcommands().empty()) current = current->get_subcommands().back();
  return current;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  return flags;
}

/// Refuses what no option or command took: an unknown command, flag or extra argument.
void refuse_remaining(Grammar& grammar) {
  CLI::App& app = grammar.app();
  const std::vector<std::string> remaining = app.remaining(true);
  const CLI::App* current = active(app);
  const bool no_command = app.get_subcommands().empty();
  if (remaining.empty()) {
    if (no_command)
      refuse(fmt::format("no command; the commands are {}", fmt::join(grammar.names(), ", ")),
             "COMMAND");
    return;
  }
  const auto flag = std::find_if(remaining.begin(), remaining.end(), [](const std::string& text) {
    return text.size() > 1 && text[0] == '-';
  });
  std::string word = flag == remaining.end() || no_command ? remaining.front() : *flag;
  const std::string where =
      no_command ? "strait" : "strait " + app.get_subcommands().back()->get_name();
  if (word.starts_with("-")) {
    word = word.substr(0, word.find('='));
    refuse(fmt::format("{} has no flag {}; the nearest is {}", where, word,
                       nearest_choice(word.substr(0, 100), flags_of(*current))),
           word);
  }
  if (no_command)
    refuse(fmt::format("there is no command \"{}\"; the nearest is \"{}\" ({})", word,
                       nearest_choice(word.substr(0, 100), grammar.names()),
                       fmt::join(grammar.names(), ", ")),
           word);
  if (current->get_name() == "bench") {
    std::vector<std::string> names;
    for (const Subject& subject : subjects()) names.push_back(subject.name);
    refuse(fmt::format("there is nothing called \"{}\" to bench; the nearest is \"{}\" ({})", word,
                       nearest_choice(word.substr(0, 100), names), fmt::join(names, ", ")),
           word);
  }
  refuse(fmt::format("{} takes no further argument \"{}\"; flags start with -- (nearest: {})",
                     where, word, nearest_choice(word.substr(0, 100), flags_of(*current))),
         word);
}

/// A flag that was given an empty value, which would otherwise read as one left out. A prompt may
/// be empty.
void refuse_empty(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& values = option->results();
    const std::string name = option->get_name();
    if (name == "--prompt" || std::find(values.begin(), values.end(), "") == values.end()) continue;
    refuse(fmt::format("{} was given an empty value; give one, or leave {} out", name, name), name);
  }
}

[[noreturn]] void refuse_number(const std::string& flag, const std::string& text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (digits && text.find_first_not_of('0') != std::string::npos)
    refuse(fmt::format("{} {}: is too large; the nearest valid value is {}", flag, text,
                       std::numeric_limits<int64_t>::max()),
           flag);
  refuse(
      fmt::format("{} {}: wants a whole number; the nearest valid value is 1 or more", flag, text),
      flag);
}

void check_case_keys(const Command& command) {
  const Subject* subject = find_subject(command.subject);
  if (!subject)
    refuse(
        "bench needs a subject: gemm, step, codec, collective or checkpoint; for example: strait "
        "bench gemm",
        "bench");
  for (const CaseKey& key : subject->keys) {
    const auto given = command.case_keys.find(key.name);
    if (given == command.case_keys.end()) continue;
    const std::string flag = flag_of(key.name);
    if (key.whole_number && !whole_number(given->second)) refuse_number(flag, given->second);
    if (!key.choices.empty() &&
        std::find(key.choices.begin(), key.choices.end(), given->second) == key.choices.end())
      refuse(fmt::format("{} {}: is unknown; the nearest is {} ({})", flag, given->second,
                         nearest_choice(given->second.substr(0, 100), key.choices),
                         fmt::join(key.choices, ", ")),
             flag);
  }
}

/// A whole number in [least, most]. CLI11 turns what is too large for 64 bits into the largest
/// number.
void check_range(const char* flag, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    refuse(fmt::format("{} {} is out of range; the nearest valid value is {}", flag, value,
                       value < least ? least : most),
           flag);
}

void check_values(const Command& command) {
  constexpr int64_t kMost = 1'000'000'000;
  const SampleArguments& sample = command.sample;
  if (command.ranks) check_range("--ranks", *command.ranks, 1, kMost);
  if (command.shard_tokens)
    check_range("--shard-tokens", *command.shard_tokens, 1, std::numeric_limits<int32_t>::max());
  check_range("--tokens", sample.tokens, 1, kMost);
  check_range("--top-k", sample.top_k, 0, kMost);
  check_range("--seed", sample.seed, 0, std::numeric_limits<int64_t>::max() - 1);
  if (!(sample.temperature >= 0) || !std::isfinite(sample.temperature))
    refuse(fmt::format("--temperature {} is out of range; the nearest valid value is 0",
                       sample.temperature),
           "--temperature");
  if (!(sample.top_p > 0 && sample.top_p <= 1))
    refuse(fmt::format("--top-p {} is out of range (0, 1]; the nearest valid value is 1",
                       sample.top_p),
           "--top-p");
  if (command.name == "bench") check_case_keys(command);
}

/// What --version asks for: the command "version" of a program that has it, else a text.
Command version_command(const CLI::App& app, const std::string& text,
                        const std::vector<std::string>& available) {
  Command command;
  if (std::find(available.begin(), available.end(), "version") == available.end()) {
    command.text = text + "\n";
    return command;
  }
  refuse_empty(app);
  command.name = "version";
  const std::vector<std::string> json = app.get_option("--json")->results();
  if (!json.empty()) command.json = json.back();
  return command;
}

/// `what`: what is missing. A mistyped flag explains that better.
[[noreturn]] void refuse_unparsed(Grammar& grammar, const std::string& what) {
  const CLI::App& app = grammar.app();
  const std::string name =
      app.get_subcommands().empty() ? "" : app.get_subcommands().back()->get_name();
  if (!name.empty() || app.count("--version") == 0) refuse_remaining(grammar);
  const std::string where = name.empty() ? "strait" : "strait " + name;
  refuse(fmt::format("{}; see {} --help", what, where), name.empty() ? where : name);
}

}  // namespace

Command parse_arguments(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& available) {
  Command command;
  Grammar grammar(available, arguments, command);
  CLI::App& app = grammar.app();
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    command.text = app.help();
  } catch (const CLI::CallForVersion& version_text) {
    return version_command(app, version_text.what(), available);
  } catch (const CLI::ConversionError& error) {
    const std::string text = error.what();  // "Could not convert: --ranks = x"
    const size_t flag = std::min(text.find("--"), text.size());
    const size_t end = std::min(text.find(" = ", flag), text.size());
    const std::string name = text.substr(flag, end - flag);
    refuse(fmt::format("{} is no number that {} takes; an example: {} 2", text.substr(flag), name,
                       name),
           name);
  } catch (const CLI::ParseError& error) {
    refuse_unparsed(grammar, error.what());
  }
  if (!command.text.empty()) return command;
  refuse_remaining(grammar);
  refuse_empty(*active(app));
  const CLI::App* chosen = app.get_subcommands().back();
  command.name = chosen->get_name();
  if (!command.paths.empty()) command.path = command.paths.front();
  if (command.name == "completion") return command;
  if (!chosen->get_subcommands().empty())
    command.subject = chosen->get_subcommands().back()->get_name();
  check_values(command);
  return command;
}

namespace {

/// Values that a flag of a bench subject, or the shell of completion, may have.
std::vector<std::string> choices_of(const std::string& command, const std::string& flag) {
  if (command == "completion" && flag.empty()) return completion_shells();
  const size_t space = command.find(' ');
  const Subject* subject =
      space == std::string::npos ? nullptr : find_subject(command.substr(space + 1));
  if (subject != nullptr)
    for (const CaseKey& key : subject->keys)
      if (flag_of(key.name) == flag) return key.choices;
  return {};
}

OptionHelp describe(const CLI::Option& option, const std::string& command) {
  OptionHelp help;
  if (!option.get_lnames().empty()) help.flag = "--" + option.get_lnames().front();
  if (!option.get_snames().empty()) help.other = "-" + option.get_snames().front();
  const bool positional = help.flag.empty() && help.other.empty();
  const bool takes_value = option.get_items_expected_max() > 0;
  if (positional)
    help.value = option.get_name();
  else if (takes_value)
    help.value = option.get_type_name();
  help.about = option.get_description();
  help.choices = choices_of(command, help.flag);
  help.required = option.get_required();
  return help;
}

void describe(const CLI::App& app, const std::string& name, std::vector<CommandHelp>& commands) {
  CommandHelp help{name, app.get_description(), app.get_footer(), {}};
  const std::string heading = "Example:\n  ";
  if (help.example.starts_with(heading)) help.example = help.example.substr(heading.size());
  for (const CLI::Option* option : app.get_options())
    help.options.push_back(describe(*option, name));
  commands.push_back(std::move(help));
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; }))
    describe(*below, name.empty() ? below->get_name() : name + " " + below->get_name(), commands);
}

}  // namespace

bool OptionHelp::takes_file() const {
  for (const char* name : {"FILE", "PATH", "FOLDER", "RUN", "CHECKPOINT", "FROM", "TO"})
    if (value.find(name) != std::string::npos) return choices.empty();
  return false;
}

std::vector<CommandHelp> describe_commands() {
  Command unused;
  const std::vector<std::string> all = {"train",    "evaluate", "sample",  "verify",
                                        "simulate", "plan",     "probe",   "bench",
                                        "inspect",  "report",   "convert", "completion"};
  std::vector<std::string> words = all;
  for (const Subject& subject : subjects()) words.emplace_back(subject.name);
  words.emplace_back("--help");
  const Grammar grammar(all, words, unused);
  std::vector<CommandHelp> commands;
  describe(grammar.app(), "", commands);
  commands.front().example = "strait train run.toml --ranks 2";
  return commands;
}

std::vector<std::string> case_key_names(const std::string& subject) {
  std::vector<std::string> names;
  if (const Subject* found = find_subject(subject))
    for (const CaseKey& key : found->keys) names.push_back(key.name);
  return names;
}

int64_t case_number(const Command& command, const std::string& key, int64_t otherwise) {
  const auto given = command.case_keys.find(key);
  if (given == command.case_keys.end()) return otherwise;
  const std::optional<int64_t> number = whole_number(given->second);
  ensure(number.has_value(), "case_number of a key that is no whole number");
  return *number;
}

std::string case_text(const Command& command, const std::string& key,
                      const std::string& otherwise) {
  const auto given = command.case_keys.find(key);
  return given == command.case_keys.end() ? otherwise : given->second;
}

}  // namespace strait::cli
