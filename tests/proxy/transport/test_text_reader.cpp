// Fields are read within their limits; what is refused names the owner, the reason and the place.
#include "native/check.h"
#include "transport/text_reader.h"

using namespace uccl;

namespace {

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const std::runtime_error& e) { return e.what(); }
  return "";
}

}  // namespace

TEST(transport_text_reader_reads_fields_in_order) {
  const std::string text = "abc1 word 18446744073709551615,7";
  TextReader r("abc", text, "abc1 ");
  CHECK_EQ(r.word(4), std::string("word"));
  r.expect(' ');
  CHECK_EQ(r.number(~0ull), ~0ull);
  r.expect(',');
  CHECK(!r.at_end());
  CHECK_EQ(r.number(7), 7u);
  CHECK(r.at_end());
  CHECK_THROWS(std::runtime_error, r.expect(','));  // and nothing is read behind the end
  CHECK_THROWS(std::runtime_error, r.number(1));
  CHECK_THROWS(std::runtime_error, r.word(1));
}

TEST(transport_text_reader_refuses_with_reason_and_place) {
  const std::string number = "abc1 12", word = "abc1 longer", other = "abd1 12", empty = "abc1 ", sign = "abc1 -1";
  CHECK_EQ(refusal([&] { TextReader("abc", number, "abc1 ").number(11); }),
           std::string("abc: address 'abc1 12': no number, or one beyond its limit, at character 5"));
  CHECK_EQ(refusal([&] { TextReader("abc", word, "abc1 ").word(5); }),
           std::string("abc: address 'abc1 longer': an empty or overlong word at character 5"));
  CHECK_EQ(refusal([&] { TextReader("abc", word, "abc1 ").expect('x'); }),
           std::string("abc: address 'abc1 longer': a separator is missing at character 5"));
  CHECK_EQ(refusal([&] { TextReader("abc", other, "abc1 "); }),
           std::string("abc: address 'abd1 12': not an address of this kind and version at character 0"));
  CHECK_THROWS(std::runtime_error, TextReader("abc", empty, "abc1 ").word(5));
  CHECK_THROWS(std::runtime_error, TextReader("abc", sign, "abc1 ").number(~0ull));
}

// The text comes from another process: a message shows no control characters of it, and no more than 100 of it.
TEST(transport_text_reader_shows_only_what_is_printable) {
  const std::string text = "abc1 \x1b[2J\n" + std::string(500, 'x');
  const std::string said = refusal([&] { TextReader("abc", text, "abc1 ").number(1); });
  CHECK(said.find("'abc1 ?[2J?xxx") != std::string::npos);
  CHECK(said.size() < 200);
}
