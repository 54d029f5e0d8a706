// The test framework: TEST(name) { CHECK(x); CHECK_EQ(a, b); }. Include it in one file of a program; it brings main().
// Checks may be made on any thread. `program part` runs only the tests whose names contain `part`.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace slipstream::check {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline std::atomic<int> failures{0};

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

inline void failed(const char* file, int line, const std::string& what) {
  // A loop that goes wrong must not fill the disk.
  if (++failures <= 50) std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

template <class T>
std::string shown(const T& value) {
  if constexpr (requires(std::ostringstream& s) { s << value; }) {
    std::ostringstream text;
    text << value;
    return text.str();
  } else {
    return "?";
  }
}

template <class A, class B>
void equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (!(a == b)) failed(file, line, std::string(text) + ": " + shown(a) + " is not " + shown(b));
}

inline int run(int argc, char** argv) {
  int ran = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    ++ran;
    const int before = failures;
    try {
      test.body();
    } catch (const std::exception& error) {
      failed(test.name, 0, std::string("threw ") + error.what());
    }
    std::fprintf(stderr, "%s %s\n", failures == before ? "ok  " : "FAIL", test.name);
  }
  std::fprintf(stderr, "%d tests, %d failed checks\n", ran, failures.load());
  return failures == 0 && ran > 0 ? 0 : 1;
}

}  // namespace slipstream::check

#define TEST(name)                                                                 \
  static void name();                                                              \
  static const ::slipstream::check::Registration name##_registration(#name, name); \
  static void name()

#define CHECK(condition) \
  ((condition) ? void() : ::slipstream::check::failed(__FILE__, __LINE__, "not true: " #condition))

#define CHECK_EQ(a, b) ::slipstream::check::equal(__FILE__, __LINE__, #a " == " #b, (a), (b))

int main(int argc, char** argv) { return ::slipstream::check::run(argc, argv); }
