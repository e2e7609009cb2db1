"use strict";
const sheet = JSON.parse(document.getElementById("pairs").textContent);
const find = id => document.getElementById(id);
const buttons = [...document.querySelectorAll("[data-answer]")];
const keys = { "1": "same", "2": "not", "3": "unsure" };
const answers = new Map();
let at = 0, judge = "", saved = true;

function open(name) {
  for (const part of ["start", "look", "end"]) find(part).hidden = part !== name;
}

function show() {
  const pair = sheet.pairs[at];
  find("left").src = pair.left;
  find("right").src = pair.right;
  find("count").textContent = `${at + 1} of ${sheet.pairs.length}`;
  find("bar").max = sheet.pairs.length;
  find("bar").value = answers.size;
  find("back").disabled = at === 0;
  find("next").disabled = !answers.has(pair.id);
  for (const button of buttons) button.setAttribute("aria-pressed", answers.get(pair.id) === button.dataset.answer);
  document.activeElement.blur();
}

function move(step) {
  if (step > 0 && !answers.has(sheet.pairs[at].id)) return;
  if (at + step >= sheet.pairs.length) return finish();
  at = Math.max(0, at + step);
  show();
}

function answer(word) {
  answers.set(sheet.pairs[at].id, word);
  saved = false;
  move(1);
}

function finish() {
  find("summary").textContent = `You answered ${answers.size} of ${sheet.pairs.length} pairs.`;
  find("saved").textContent = "";
  open("end");
}

function begin() {
  judge = find("name").value.trim();
  if (!judge) {
    find("name-fault").textContent = "Please enter your name or initials first.";
    find("name").focus();
    return;
  }
  open("look");
  show();
}

function save() {
  const record = { schema: sheet.schema, page: sheet.page, judge, answers: Object.fromEntries(answers) };
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(record, null, 2) + "\n"], { type: "application/json" }));
  link.download = "judgements.json";
  link.click();
  saved = true;
  find("saved").textContent = "Saved where your browser puts downloads.";
}

for (const button of buttons) button.addEventListener("click", () => answer(button.dataset.answer));
find("begin").addEventListener("click", begin);
find("name").addEventListener("keydown", event => { if (event.key === "Enter") begin(); });
find("back").addEventListener("click", () => move(-1));
find("next").addEventListener("click", () => move(1));
find("stop").addEventListener("click", finish);
find("again").addEventListener("click", () => { open("look"); show(); });
find("save").addEventListener("click", save);
document.addEventListener("keydown", event => {
  // A key held down must not answer a row of pairs.
  if (find("look").hidden || event.repeat || event.ctrlKey || event.altKey || event.metaKey) return;
  if (keys[event.key]) answer(keys[event.key]);
  else if (event.key === "ArrowLeft" || event.key === "Backspace") move(-1);
  else if (event.key === "ArrowRight") move(1);
  else return;
  event.preventDefault();
});
window.addEventListener("beforeunload", event => { if (!saved) event.preventDefault(); });

find("total").textContent = sheet.pairs.length;
open("start");
