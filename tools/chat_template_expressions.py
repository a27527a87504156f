# SPDX-License-Identifier: Apache-2.0
"""Expressions of chat templates, of which each is a case of chat_template_vectors.py, and their variables."""
# ---- expressions: one line each, all with the same variables
VARIABLES = {
    "s": "Hello, W\u00f6rld \u4f60\u597d \U0001f600",
    "text": "  <think>\na b\n</think>\n\nanswer \n\n",
    "e": "",
    "n": 7,
    "x": 2.5,
    "t": True,
    "f": False,
    "none_value": None,
    "xs": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "d": {"b": 1, "a": "two", "items": [1], "nested": {"k": [1, {"z": None}]}},
    "people": [{"name": "Ann", "age": 31, "role": "user"}, {"name": "bob", "age": 5, "role": "tool"}, {"name": "Cy", "role": "user"}],
    "quote": "it's \"q\" \\ \n\t\x01 \u00e9 \u200b </tag> & <b>",
    "empty_list": [],
    "empty_dict": {},
    "big": 1e16,
    "small": 1e-7,
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 // -2, 7 % -3
7.5 // 2, -7.5 % 2, 7.5 % -2
2 ** 10, 2 ** -1, 2 ** 3 ** 2, -2 ** 2
1_000 + 2
1.5e3, 2.0, 1e100, 0.1 + 0.2, 1/3
n, x, t, f, none_value, big, small, -0.0
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, true == 1, "1" == 1
n > 5 and x < 3 or f, not t, not not e
e or "default", n and x, none_value or 0
"a" "b" 'c'
"esc \n\t\\ \' \" \x41 \u00e9 \101 \q"
'a' ~ 1 ~ 2.0 ~ true ~ none ~ undefined_thing ~ [1, 'x'] ~ {'k': 'v'}
"ab" * 3, [1] * 2, 3 * "x", "x" * -1
[1, 2] + [3], (1, 2) + (3,), (1,), (), []
{"a": 1, 'b': [1, 2.0, none, true]}, {"a": 1, "a": 2}
xs[0], xs[-1], xs[5] is defined, xs[1:], xs[:-1], xs[::-1], xs[::2], xs[5:], xs[-2:], xs[1:0:-1]
s[0], s[7], s[-1], s[1:5], s[::-1], s[100:], s[:3], s[-3:-1], s[10:2:-2]
d.b, d['a'], d["missing"] is defined, d.nested.k[1].z is none, d.nested['k'][0]
xs.0, d.nested.k.1
"pp" in "apple", "x" in xs, 3 in xs, "a" in d, "z" not in d, 1 in (1, 2)
none_value is none, missing is none, missing is defined, n is defined, missing is undefined
s is string, n is string, xs is string, n is number, t is number, x is float, n is integer, t is integer, t is boolean
d is mapping, xs is mapping, xs is sequence, d is sequence, s is sequence, n is sequence, xs is iterable, n is iterable, s is iterable, missing is iterable
n is odd, n is even, n is divisibleby 7, n is divisibleby(2), t is true, f is false, n is true, n is not none
n is eq 7, n is gt 3, n is lt(3), n is ge 7, n is le 6, n is ne 7, 3 is in xs, n is sameas 7
range is callable, n is callable, missing is callable, "a" is lower, "A" is upper, "aB" is lower
"a" if t else "b", "a" if f, ("a" if f) is defined, 1 if f else 2 if f else 3
s | length, xs | count, d | length, e | length, missing | length
text | trim, "xxaxx" | trim("x"), 5 | trim
missing | default("D"), none_value | default("D"), none_value | default("D", true), e | d("E", boolean=true), n | default(1)
xs | join(", "), xs | join, words | join("-"), people | join("|", attribute="name"), s | join(".")
xs | first, xs | last, empty_list | first is defined, s | first, s | last, d | first
"abc" | list, d | list, (1, 2) | list, d.items() | list
words | map("upper") | list, people | map(attribute="name") | join(","), people | map(attribute="age", default=0) | list
words | map("replace", "p", "P") | list
[0, 1, "", "a", none_value] | select | list, [0, 1, 2, 3] | select("odd") | list, [0, 1, 2] | reject("eq", 1) | list
people | selectattr("role", "equalto", "user") | map(attribute="name") | list
people | selectattr("age") | list | length, people | rejectattr("age", "defined") | map(attribute="name") | list
people | selectattr("age", "gt", 10) | list if f else people | selectattr("age", "defined") | selectattr("age", "gt", 10) | list
d | items | list, d.items() | list, d.keys() | list, d.values() | list, missing | items | list
d.get("a"), d.get("q"), d.get("q", 3), d.get("items")
d | dictsort if f else {"b": 2, "A": 1, "c": 0} | dictsort, {"b": 2, "a": 1} | dictsort(by="value"), {"b": 2, "a": 1} | dictsort(reverse=true)
s | upper, s | lower, "hello wORLD-foo (bar" | title, "hello wORLD" | capitalize, "stra\u00dfe" | upper
"hello wORLD's x" .title(), "hELLO".capitalize(), "\u01c6x".title()
"a-b-a" | replace("a", "x"), "a-b-a" | replace("a", "x", 1), "ab" | replace("", "-")
n | string, x | string, none_value | string, t | string, xs | string, d | string
"42" | int, " 7 " | int, "3.9" | int, "x" | int, "x" | int(5), "ff" | int(base=16), x | int, none_value | int(3), t | int, "-5" | int
"2.5" | float, "x" | float, "x" | float(1.5), n | float
d | tojson, quote | tojson, xs | tojson, none_value | tojson, x | tojson, big | tojson, t | tojson, empty_list | tojson
d | tojson(indent=2)
{"b": [], "a": {}, "c": [1, [2]]} | tojson(indent=4)
d | tojson(sort_keys=true), s | tojson(ensure_ascii=true), xs | tojson(separators=(",", ":"))
quote, [quote], d, ["it's", 'say "x"', "\n\\"]
quote | safe
xs | reverse | list, "abc" | reverse, xs | sort, xs | sort(reverse=true), words | sort, words | sort(case_sensitive=true), people | sort(attribute="name") | map(attribute="name") | list
words | unique | list, words | unique(case_sensitive=true) | list
xs | sum, xs | min, xs | max, words | min, people | selectattr("age", "defined") | sum(attribute="age"), [1.5, 2] | sum
-5 | abs, x | abs, 2.567 | round(1), 2.5 | round, 3.5 | round, 2.1 | round(0, "ceil"), 2.9 | round(method="floor")
"a\nb\n\nc" | indent, "a\nb\n" | indent(2, true), "a\n\nb" | indent(1, blank=true), "a\nb" | indent("> ", first=true)
text.strip(), text.lstrip(), text.rstrip(), text.strip("\n "), "xyx".strip("x"), "xyx".lstrip("x"), "xyx".rstrip("xy")
text.split("</think>")[-1].lstrip("\n"), text.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
"a b  c".split(), "a b  c".split(" "), "a,b,c".split(",", 1), "a,b,c".rsplit(",", 1), " a b c ".split(none, 1), " a b c ".rsplit(none, 1), "".split(), "".split(","), "aaa".rsplit("aa", 1)
"a\nb\r\nc".splitlines(), "a\nb\n".splitlines(true), "".splitlines()
s.startswith("Hello"), s.endswith("x"), "abc".startswith(("x", "a")), "abc".endswith("")
"abcabc".find("c"), "abcabc".rfind("c"), "abc".find("z"), s.find("\u597d"), "abc".index("b"), "abcabc".rindex("a")
"a.b".replace(".", "::"), "aaa".replace("a", "b", 2), "abcb".count("b"), "abc".count(""), "-".join(["a", "b"]), ",".join("abc")
"abc".removeprefix("a"), "abc".removesuffix("bc"), "abc".removeprefix("z"), "12".isdigit(), "1a".isdigit(), "ab".isalpha(), " ".isspace(), "".isspace(), "a1".isalnum()
"ABC".lower(), "abc".upper(), s.upper()
xs.index(1), xs.count(1), [1, 1].count(1)
range(3) | list, range(1, 4) | list, range(5, 0, -2) | list, range(0) | list, range(3) | last
namespace(a=1).a, namespace({"b": 2}).b, namespace(a=1).missing is defined
dict(a=1, b=2), dict({"a": 1}, c=3)
strftime_now("%d %b %Y"), strftime_now("%Y-%m-%d %H:%M:%S %A %B %j")
missing, "[" ~ missing ~ "]", missing is not defined
missing == missing_too, missing == none, missing in xs
xs | length > 2 and words | length == 4
(n | string) + "!", n ~ "!", "%d" if f else "no"
d is defined and d.a is defined and d.a is string and "w" in d.a
not "a" in "abc", "a" not in "abc", not ("a" in "abc")
(xs | first) + (xs | last), -xs[0], +x, -n | abs
[[1, 2], [3]] | map("first") | list, [[1, 2], [3]] | map(attribute=0) | list, [{"a": {"b": 5}}] | map(attribute="a.b") | list
[1, 2] == [1, 2], [1] == (1,), {"a": 1} == {"a": 1.0}, "a" < "b", [1, 2] < [1, 3], "Z" < "a"
"\u00e9" | length, "\U0001f600" | length, "\U0001f600"[0], "a\u0301" | length
true and "yes" or "no", True, None, none, False
s == "Hello, W\u00f6rld \u4f60\u597d \U0001f600"
{"a": {"b": {}}}["a"]["b"], {}.x is defined, [{}][0]
[1,2,], {"a": 1,}, (1,2,)
x is number and x > 2
words | map("length") | sum
"a" ~ ("b" if t) ~ ("c" if f)
"{{ not a tag }}" ~ '{% nor this %}'
1 if xs else 0, 1 if empty_list else 0, 1 if empty_dict else 0, 1 if "0" else 0, 1 if 0.0 else 0
"a" + "b" | upper, ("a" + "b") | upper, "a" ~ "b" | upper
"%s" is string and "x" is not number
""".strip().split("\n")

# ---- expressions that fail
FAILING = r"""
missing.attribute
missing["key"]
missing + "x"
"x" + none_value
"x" + 1
none_value + 1
[1] + "a"
xs | tojson(indent="z") + missing()
missing()
n()
"abc".nothing()
xs.append(4)
d.update({"q": 1})
1 / 0
1 // 0
1 % 0
missing | tojson
n | length
n | items | list
1 in n
1 < "a"
"a".split("")
"abc".index("z")
[] | first + 1
xs | no_such_filter
xs is no_such_test
raise_exception("the conversation must start with a user")
range(10, "x")
1 +
(1
[1
{"a" 1}
a b
"unclosed
1 is
x |
d.
xs[
n | default(1, 2, 3)
n | trim(charz="x")
-"a"
""".strip().split("\n")
