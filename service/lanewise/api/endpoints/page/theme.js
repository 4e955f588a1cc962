// Light or dark as chosen, before anything is drawn; without a choice the style sheet asks the system.
(() => {
  const NAME = "lanewise.theme";
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(NAME) ?? "";
    } catch {
      return ""; // a browser that keeps nothing
    }
  }

  root.dataset.theme = stored();
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    if (!choice) return; // a page without the choice follows it
    choice.value = root.dataset.theme;
    choice.addEventListener("change", () => {
      root.dataset.theme = choice.value;
      try {
        localStorage.setItem(NAME, choice.value);
      } catch {
        // then it holds for this page
      }
    });
  });
})();
